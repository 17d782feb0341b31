//! Collectives on GPUs, against a stand-in for the driver and NCCL: CI has no GPU.

mod collectives;
mod faults;
mod observers;
mod standin;
mod types;
mod worlds;
