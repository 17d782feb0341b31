//! What is known of the shapes of results while a graph is built.

use std::ffi::c_int;

use super::api::{Handle, api};

/// A shape of TensorFlow's, ours until it is dropped.
struct Shape(Handle);

impl Shape {
    fn new() -> Shape {
        Shape(api().new_shape())
    }

    fn of_input(context: Handle, index: c_int, status: Handle) -> Option<Shape> {
        let shape = Shape::new();
        api().shape_input(context, index, shape.0, status);
        is_fine(status).then_some(shape)
    }
}

impl Drop for Shape {
    fn drop(&mut self) {
        api().delete_shape(self.0);
    }
}

fn is_fine(status: Handle) -> bool {
    api().code(status) == 0
}

/// Every result has the shape of its input.
pub(super) extern "C" fn same(context: Handle, status: Handle) {
    for index in 0..api().shape_inputs(context) as c_int {
        let Some(shape) = Shape::of_input(context, index, status) else { return };
        api().shape_output(context, index, shape.0, status);
    }
}

/// Every result has the shape of its input but for the first dimension, which only the run knows.
pub(super) extern "C" fn rows_unknown(context: Handle, status: Handle) {
    api().shape_unknown(context, status);
    for index in 0..api().shape_inputs(context) as c_int {
        put_rows_unknown(context, index, status);
    }
}

/// The same for the first result; the second is a vector of rows for each rank.
pub(super) extern "C" fn exchanged(context: Handle, status: Handle) {
    api().shape_unknown(context, status);
    put_rows_unknown(context, 0, status);
    // The size -1 stands for one that is not known.
    let vector = Shape(api().shape_vector(context, usize::MAX));
    if is_fine(status) {
        api().shape_output(context, 1, vector.0, status);
    }
}

/// There are no results.
pub(super) extern "C" fn nothing(_: Handle, _: Handle) {}

/// The one result is a number.
pub(super) extern "C" fn number(context: Handle, status: Handle) {
    let scalar = Shape(api().shape_scalar(context));
    api().shape_output(context, 0, scalar.0, status);
}

fn put_rows_unknown(context: Handle, index: c_int, status: Handle) {
    let Some(input) = Shape::of_input(context, index, status) else { return };
    if api().shape_rank_known(context, input.0) == 0 {
        return;
    }
    let rank = api().shape_rank(context, input.0);
    let (rest, whole) = (Shape::new(), Shape::new());
    api().shape_part(context, input.0, 1.min(rank), rank, rest.0, status);
    let rows = Shape(api().shape_vector(context, usize::MAX));
    if is_fine(status) {
        api().shape_join(context, rows.0, rest.0, whole.0, status);
    }
    if is_fine(status) {
        api().shape_output(context, index, whole.0, status);
    }
}
