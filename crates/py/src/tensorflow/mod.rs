//! TensorFlow's ops: names, shapes and kernels, registered in the TensorFlow of this process
//! through its C interface. Nothing of TensorFlow is linked, and one build works with all its
//! releases since 2.13.
//!
//! `tf.load_op_library` creates Python functions for the ops that are registered while it loads a
//! library. That library is `crates/tensorflow`; it only calls [`ronde_tensorflow_register`].
#![expect(unsafe_code, reason = "exports a C symbol for another library")]

mod api;
mod context;
mod done;
mod kernel;
mod node;
mod ops;
mod shape;

use std::sync::OnceLock;

use pyo3::prelude::*;

static REGISTERED: OnceLock<Result<(), String>> = OnceLock::new();

/// Registers the ops, once.
// SAFETY: nobody else defines a function of this name.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ronde_tensorflow_register() {
    REGISTERED.get_or_init(|| ops::register(api::load()?));
}

/// Why the ops are not registered, if they are not.
#[pyfunction]
pub(crate) fn tensorflow_problem() -> Option<String> {
    match REGISTERED.get() {
        Some(Ok(())) => None,
        Some(Err(problem)) => Some(problem.clone()),
        None => Some("the op library did not find the module `horovod._native`".into()),
    }
}
