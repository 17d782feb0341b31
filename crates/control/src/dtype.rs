//! Element types and reductions, with Horovod's names.

use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, IntoStaticStr, VariantArray};

/// The type of a tensor's elements; the names are those that frameworks use.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    Serialize,
    Deserialize,
    Display,
    EnumString,
    IntoStaticStr,
    VariantArray,
)]
pub enum DType {
    /// Unsigned 8-bit integer.
    #[strum(serialize = "uint8")]
    U8,
    /// Signed 8-bit integer.
    #[strum(serialize = "int8")]
    I8,
    /// Unsigned 16-bit integer.
    #[strum(serialize = "uint16")]
    U16,
    /// Signed 16-bit integer.
    #[strum(serialize = "int16")]
    I16,
    /// Signed 32-bit integer.
    #[strum(serialize = "int32")]
    I32,
    /// Signed 64-bit integer.
    #[strum(serialize = "int64")]
    I64,
    /// IEEE half precision.
    #[strum(serialize = "float16")]
    F16,
    /// The upper half of a single-precision float.
    #[strum(serialize = "bfloat16")]
    BF16,
    /// IEEE single precision.
    #[strum(serialize = "float32")]
    F32,
    /// IEEE double precision.
    #[strum(serialize = "float64")]
    F64,
    /// One byte, zero or one.
    #[strum(serialize = "bool")]
    Bool,
}

impl DType {
    /// Every element type, in declaration order.
    pub const ALL: &[DType] = DType::VARIANTS;

    /// Bytes per element.
    pub fn size(self) -> usize {
        match self {
            DType::U8 | DType::I8 | DType::Bool => 1,
            DType::U16 | DType::I16 | DType::F16 | DType::BF16 => 2,
            DType::I32 | DType::F32 => 4,
            DType::I64 | DType::F64 => 8,
        }
    }

    /// Whether this is a floating-point type.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
    }
}

/// How tensors of several ranks are combined. An average is a sum with a scale factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, Display)]
#[strum(serialize_all = "UPPERCASE")]
pub enum ReduceOp {
    /// Sum; logical or for booleans.
    Sum,
    /// Minimum; logical and for booleans.
    Min,
    /// Maximum; logical or for booleans.
    Max,
    /// Product; logical and for booleans.
    Product,
    /// A sum that counts the common part of two tensors once; not computed element by element.
    Adasum,
}
