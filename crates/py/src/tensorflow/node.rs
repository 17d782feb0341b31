//! The nodes of graphs: a kernel is created once for each, with the node's name and attributes, and
//! computes many times.
#![expect(unsafe_code, reason = "TensorFlow passes our kernel pointers back to us")]

use std::ffi::{CStr, c_char};
use std::sync::Once;

use super::api::{Create, TfHandle, api};
use super::context::TfStatus;
use crate::native::{CollectiveCall, CollectiveRequest, Failure, Reduce};

/// The collective that a node describes.
pub(super) struct CollectiveKernel {
    name: String,
    pub(super) set: u32,
    collective_request: CollectiveRequest,
}

impl CollectiveKernel {
    pub(super) fn call(&self) -> CollectiveCall {
        CollectiveCall {
            name: self.name.clone(),
            set: self.set,
            collective_request: self.collective_request.clone(),
        }
    }
}

/// Creates a kernel; if an attribute is missing, reports that to TensorFlow and returns null.
fn make(
    construction: TfHandle,
    collective_request: impl FnOnce(&NodeAttributes) -> Result<CollectiveRequest, Failure>,
) -> TfHandle {
    let attributes = NodeAttributes(construction);
    let kernel = collective_request(&attributes).and_then(|collective_request| {
        let set = attributes.integer(c"process_set_id", Some(0))?;
        // A number that no process set has is refused at submission.
        let set = u32::try_from(set).unwrap_or(u32::MAX);
        Ok(CollectiveKernel { name: attributes.name()?, set, collective_request })
    });
    match kernel {
        Ok(kernel) => Box::into_raw(Box::new(kernel)).cast(),
        Err(failure) => {
            api().construction_fails(construction, TfStatus::of(&failure).handle());
            std::ptr::null_mut()
        }
    }
}

/// Creates the kernels of an op, for nodes on each kind of device.
#[derive(Clone, Copy)]
pub(super) struct Make {
    pub(super) on_cpu: Create,
    pub(super) on_gpu: Create,
}

macro_rules! makes {
    ($($(#[$doc:meta])* $name:ident, $on_cpu:ident, $on_gpu:ident: $collective_request:expr;)*) => {$(
        $(#[$doc])*
        pub(super) const $name: Make = Make { on_cpu: $on_cpu, on_gpu: $on_gpu };

        extern "C" fn $on_cpu(construction: TfHandle) -> TfHandle {
            make(construction, $collective_request)
        }

        extern "C" fn $on_gpu(construction: TfHandle) -> TfHandle {
            warn_about_host_memory();
            make(construction, $collective_request)
        }
    )*};
}

makes! {
    ALLREDUCE, allreduce, allreduce_on_gpu: |node| Ok(CollectiveRequest::Allreduce(node.reduce()?));
    REDUCESCATTER, reducescatter, reducescatter_on_gpu: |node| {
        Ok(CollectiveRequest::Reducescatter(node.reduce()?))
    };
    BROADCAST, broadcast, broadcast_on_gpu: |node| {
        Ok(CollectiveRequest::Broadcast { root: node.integer(c"root_rank", None)? })
    };
    ALLGATHER, allgather, allgather_on_gpu: |_| Ok(CollectiveRequest::Allgather);
    ALLTOALL, alltoall, alltoall_on_gpu: |_| Ok(CollectiveRequest::Alltoall { splits: Vec::new() });
}

/// For nodes without tensors, whose only attribute may be a process set.
pub(super) const COMMAND: Make = Make { on_cpu: command, on_gpu: command };

extern "C" fn command(construction: TfHandle) -> TfHandle {
    make(construction, |_| Ok(CollectiveRequest::Barrier))
}

/// Warns once, at the first node that TensorFlow has placed on a GPU.
fn warn_about_host_memory() {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        tracing::warn!(
            "tensors on a GPU go through host memory: TensorFlow copies them, because it lets no op \
             of another package use its streams; results are correct, but take longer"
        );
    });
}

pub(super) extern "C" fn delete(kernel: TfHandle) {
    if !kernel.is_null() {
        // SAFETY: `make` leaked it, and TensorFlow passes it back once.
        drop(unsafe { Box::from_raw(kernel.cast::<CollectiveKernel>()) });
    }
}

/// The kernel of a handle; TensorFlow keeps it until no computation uses it any more.
pub(super) fn kernel<'a>(handle: TfHandle) -> &'a CollectiveKernel {
    // SAFETY: `make` returned it; a kernel that could not be created is never run.
    unsafe { &*handle.cast::<CollectiveKernel>() }
}

/// Attributes of the node that a kernel is made for.
struct NodeAttributes(TfHandle);

impl NodeAttributes {
    /// The name that ranks match the node by.
    fn name(&self) -> Result<String, Failure> {
        let given = self.text(c"tensor_name")?;
        if !given.is_empty() {
            return Ok(given);
        }
        let text = api().kernel_name(self.0);
        // SAFETY: the text belongs to TensorFlow, and lives as long as the construction.
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
        api().has_attribute(self.0, name.as_ptr(), TfStatus::new().handle())
    }

    fn integer(&self, name: &CStr, default: Option<i64>) -> Result<i64, Failure> {
        if let Some(default) = default
            && !self.has(name)
        {
            return Ok(default);
        }
        let (status, mut value) = (TfStatus::new(), 0);
        api().int_attribute(self.0, name.as_ptr(), &raw mut value, status.handle());
        status.check().map(|()| value)
    }

    fn factor(&self, name: &CStr) -> Result<f64, Failure> {
        let (status, mut value) = (TfStatus::new(), 0.0);
        api().float_attribute(self.0, name.as_ptr(), &raw mut value, status.handle());
        status.check().map(|()| f64::from(value))
    }

    fn text(&self, name: &CStr) -> Result<String, Failure> {
        if !self.has(name) {
            return Ok(String::new());
        }
        let (status, mut list, mut bytes) = (TfStatus::new(), 0, 0);
        let (list, size) = (&raw mut list, &raw mut bytes);
        api().attribute_size(self.0, name.as_ptr(), list, size, status.handle());
        status.check()?;
        let mut text = vec![0; usize::try_from(bytes).unwrap_or_default()];
        let (start, capacity) = (text.as_mut_ptr(), text.len());
        let start = start.cast::<c_char>();
        api().text_attribute(self.0, name.as_ptr(), start, capacity, status.handle());
        status.check()?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    fn flag(&self, name: &CStr) -> Result<bool, Failure> {
        if !self.has(name) {
            return Ok(false);
        }
        let (status, mut value) = (TfStatus::new(), 0);
        api().bool_attribute(self.0, name.as_ptr(), &raw mut value, status.handle());
        status.check().map(|()| value != 0)
    }
}
