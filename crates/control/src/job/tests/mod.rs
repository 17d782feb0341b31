//! Tests of whole jobs, step by step.

mod elastic;
mod fixed;
