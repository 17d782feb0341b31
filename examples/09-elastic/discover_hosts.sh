#!/bin/sh
# Says which hosts there are and how many workers each takes: whatever stands in `hosts.txt`.
# Change that file while the job runs.
cat "$(dirname "$0")/hosts.txt"
