#!/bin/sh
# Prints the available hosts and the number of slots on each: the contents of `hosts.txt`.
# Change that file while the job runs.
cat "$(dirname "$0")/hosts.txt"
