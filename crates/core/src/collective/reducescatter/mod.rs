//! Reducescatter: each rank ends with its part of the reduced tensor.

mod levels;
mod ring;
mod sliced;

pub(super) use levels::levels;
pub(super) use ring::ring;
pub(super) use sliced::sliced;
