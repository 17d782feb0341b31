//! Jobs step by step.

mod elastic;
mod fixed;
