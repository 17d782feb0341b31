//! The nodes of graphs: a kernel is made once for each, with the node's name and attributes, and
//! computes many times.
#![expect(unsafe_code, reason = "TensorFlow gives back the address of the kernel that we gave it")]

use std::ffi::{CStr, c_char};
use std::sync::Once;

use super::api::{Create, Handle, api};
use super::context::Status;
use crate::native::{Call, Failure, Reduce, Wish};

/// What a node says about its collective.
pub(super) struct Kernel {
    name: String,
    pub(super) set: u32,
    wish: Wish,
}

impl Kernel {
    pub(super) fn call(&self) -> Call {
        Call { name: self.name.clone(), set: self.set, wish: self.wish.clone() }
    }
}

/// Makes kernels; gives nothing, and tells TensorFlow why, when an attribute is missing.
fn make(construction: Handle, wish: impl FnOnce(&Attributes) -> Result<Wish, Failure>) -> Handle {
    let attributes = Attributes(construction);
    let kernel = wish(&attributes).and_then(|wish| {
        let set = attributes.integer(c"process_set_id", Some(0))?;
        // A number that no set has is refused when something is submitted.
        let set = u32::try_from(set).unwrap_or(u32::MAX);
        Ok(Kernel { name: attributes.name()?, set, wish })
    });
    match kernel {
        Ok(kernel) => Box::into_raw(Box::new(kernel)).cast(),
        Err(failure) => {
            api().construction_fails(construction, Status::of(&failure).handle());
            std::ptr::null_mut()
        }
    }
}

/// What makes the kernels of an op, for nodes on each kind of device.
#[derive(Clone, Copy)]
pub(super) struct Make {
    pub(super) on_cpu: Create,
    pub(super) on_gpu: Create,
}

macro_rules! makes {
    ($($(#[$doc:meta])* $name:ident, $on_cpu:ident, $on_gpu:ident: $wish:expr;)*) => {$(
        $(#[$doc])*
        pub(super) const $name: Make = Make { on_cpu: $on_cpu, on_gpu: $on_gpu };

        extern "C" fn $on_cpu(construction: Handle) -> Handle {
            make(construction, $wish)
        }

        extern "C" fn $on_gpu(construction: Handle) -> Handle {
            note_host_memory();
            make(construction, $wish)
        }
    )*};
}

makes! {
    ALLREDUCE, allreduce, allreduce_on_gpu: |node| Ok(Wish::Allreduce(node.reduce()?));
    REDUCESCATTER, reducescatter, reducescatter_on_gpu: |node| {
        Ok(Wish::Reducescatter(node.reduce()?))
    };
    BROADCAST, broadcast, broadcast_on_gpu: |node| {
        Ok(Wish::Broadcast { root: node.integer(c"root_rank", None)? })
    };
    ALLGATHER, allgather, allgather_on_gpu: |_| Ok(Wish::Allgather);
    ALLTOALL, alltoall, alltoall_on_gpu: |_| Ok(Wish::Alltoall { splits: Vec::new() });
}

/// Of nodes without tensors, which say at most which set they ask about.
pub(super) const COMMAND: Make = Make { on_cpu: command, on_gpu: command };

extern "C" fn command(construction: Handle) -> Handle {
    make(construction, |_| Ok(Wish::Barrier))
}

/// Said once, by the first node that TensorFlow has put on a GPU.
fn note_host_memory() {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        tracing::warn!(
            "collectives of tensors on a GPU go through the host's memory in this release; results \
             are right, and TensorFlow copies them"
        );
    });
}

pub(super) extern "C" fn delete(kernel: Handle) {
    if !kernel.is_null() {
        // SAFETY: `make` leaked it, and TensorFlow gives it back once.
        drop(unsafe { Box::from_raw(kernel.cast::<Kernel>()) });
    }
}

/// The kernel behind a handle; TensorFlow keeps it until nothing computes any more.
pub(super) fn kernel<'a>(handle: Handle) -> &'a Kernel {
    // SAFETY: `make` gave it; one that could not be made is never run.
    unsafe { &*handle.cast::<Kernel>() }
}

/// Attributes of the node that a kernel is made for.
struct Attributes(Handle);

impl Attributes {
    /// What ranks match the node by.
    fn name(&self) -> Result<String, Failure> {
        let given = self.text(c"tensor_name")?;
        if !given.is_empty() {
            return Ok(given);
        }
        let text = api().kernel_name(self.0);
        // SAFETY: the text is TensorFlow's, and lives as long as the construction.
        let bytes = unsafe { std::slice::from_raw_parts(text.start.cast::<u8>(), text.length) };
        let name = String::from_utf8_lossy(bytes);
        let short = self.flag(c"ignore_name_scope")?;
        let last = name.rsplit('/').next().filter(|_| short);
        Ok(last.unwrap_or(&name).to_owned())
    }

    fn reduce(&self) -> Result<Reduce, Failure> {
        Ok(Reduce {
            op: self.integer(c"reduce_op", None)?,
            prescale: self.factor(c"prescale_factor")?,
            postscale: self.factor(c"postscale_factor")?,
        })
    }

    fn has(&self, name: &CStr) -> bool {
        api().has_attribute(self.0, name.as_ptr(), Status::new().handle())
    }

    fn integer(&self, name: &CStr, default: Option<i64>) -> Result<i64, Failure> {
        if let Some(default) = default
            && !self.has(name)
        {
            return Ok(default);
        }
        let (status, mut value) = (Status::new(), 0);
        api().int_attribute(self.0, name.as_ptr(), &raw mut value, status.handle());
        status.check().map(|()| value)
    }

    fn factor(&self, name: &CStr) -> Result<f64, Failure> {
        let (status, mut value) = (Status::new(), 0.0);
        api().float_attribute(self.0, name.as_ptr(), &raw mut value, status.handle());
        status.check().map(|()| f64::from(value))
    }

    fn text(&self, name: &CStr) -> Result<String, Failure> {
        if !self.has(name) {
            return Ok(String::new());
        }
        let (status, mut list, mut bytes) = (Status::new(), 0, 0);
        let (list, size) = (&raw mut list, &raw mut bytes);
        api().attribute_size(self.0, name.as_ptr(), list, size, status.handle());
        status.check()?;
        let mut text = vec![0; usize::try_from(bytes).unwrap_or_default()];
        let (start, room) = (text.as_mut_ptr(), text.len());
        let start = start.cast::<c_char>();
        api().text_attribute(self.0, name.as_ptr(), start, room, status.handle());
        status.check()?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    fn flag(&self, name: &CStr) -> Result<bool, Failure> {
        if !self.has(name) {
            return Ok(false);
        }
        let (status, mut value) = (Status::new(), 0);
        api().bool_attribute(self.0, name.as_ptr(), &raw mut value, status.handle());
        status.check().map(|()| value != 0)
    }
}
