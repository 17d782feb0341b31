//! Reducescatter: everybody ends with its part of the combination of everybody's elements.

mod levels;
mod ring;
mod sliced;

pub(super) use levels::levels;
pub(super) use ring::ring;
pub(super) use sliced::sliced;
