//! Reducescatter: everybody ends with its part of the combination of everybody's elements.

mod ring;
mod sliced;

pub(super) use ring::ring;
pub(super) use sliced::sliced;
