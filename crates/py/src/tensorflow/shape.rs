//! Shape inference for results while a graph is built.

use std::ffi::c_int;

use super::api::{TfHandle, api};

/// A TensorFlow shape, ours until it is dropped.
struct TfShape(TfHandle);

impl TfShape {
    fn new() -> TfShape {
        TfShape(api().new_shape())
    }

    fn of_input(context: TfHandle, index: c_int, status: TfHandle) -> Option<TfShape> {
        let shape = TfShape::new();
        api().shape_input(context, index, shape.0, status);
        is_fine(status).then_some(shape)
    }
}

impl Drop for TfShape {
    fn drop(&mut self) {
        api().delete_shape(self.0);
    }
}

fn is_fine(status: TfHandle) -> bool {
    api().code(status) == 0
}

/// Every result has the shape of its input.
pub(super) extern "C" fn same(context: TfHandle, status: TfHandle) {
    for index in 0..api().shape_inputs(context) as c_int {
        let Some(shape) = TfShape::of_input(context, index, status) else { return };
        api().shape_output(context, index, shape.0, status);
    }
}

/// Every result has the shape of its input except for the first dimension, which is known only at
/// run time.
pub(super) extern "C" fn rows_unknown(context: TfHandle, status: TfHandle) {
    api().shape_unknown(context, status);
    for index in 0..api().shape_inputs(context) as c_int {
        put_rows_unknown(context, index, status);
    }
}

/// Like [`rows_unknown`] for the first result; the second is a vector of row counts, one per rank.
pub(super) extern "C" fn exchanged(context: TfHandle, status: TfHandle) {
    api().shape_unknown(context, status);
    put_rows_unknown(context, 0, status);
    // The size -1 means unknown.
    let vector = TfShape(api().shape_vector(context, usize::MAX));
    if is_fine(status) {
        api().shape_output(context, 1, vector.0, status);
    }
}

/// There are no results.
pub(super) extern "C" fn nothing(_: TfHandle, _: TfHandle) {}

/// The only result is a scalar.
pub(super) extern "C" fn number(context: TfHandle, status: TfHandle) {
    let scalar = TfShape(api().shape_scalar(context));
    api().shape_output(context, 0, scalar.0, status);
}

fn put_rows_unknown(context: TfHandle, index: c_int, status: TfHandle) {
    let Some(input) = TfShape::of_input(context, index, status) else { return };
    if api().shape_rank_known(context, input.0) == 0 {
        return;
    }
    let rank = api().shape_rank(context, input.0);
    let (rest, whole) = (TfShape::new(), TfShape::new());
    api().shape_part(context, input.0, 1.min(rank), rank, rest.0, status);
    let rows = TfShape(api().shape_vector(context, usize::MAX));
    if is_fine(status) {
        api().shape_join(context, rows.0, rest.0, whole.0, status);
    }
    if is_fine(status) {
        api().shape_output(context, index, whole.0, status);
    }
}
