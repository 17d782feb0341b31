//! User-defined reduction operators: a sum of inputs that each rank has scaled by its own factor.
#![expect(unsafe_code, reason = "exports C symbols")]

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::Mutex;

use super::communicator::FakeCommunicator;
use super::elements::{NcclType, ReduceOperator};
use super::errors::{NcclFailure, NcclResult};
use super::{answer, nccl_on};
use crate::driver::{CuResult, memory};
use crate::handles::lock;
use crate::pointers;

/// The first number that is not one of NCCL's own.
const FIRST: c_int = 5;
const SCALAR_ON_DEVICE: c_int = 0;
const SCALAR_ON_HOST: c_int = 1;

/// The operators of one communicator by number.
#[derive(Default)]
pub(super) struct UserOperators {
    live: Mutex<BTreeMap<c_int, (NcclType, PreMulFactor)>>,
}

#[derive(Clone, Debug)]
pub(super) enum PreMulFactor {
    Value(Vec<u8>),
    /// Read when the collective runs.
    At(usize),
}

impl PreMulFactor {
    pub(super) fn read(&self, dtype: NcclType) -> CuResult<Vec<u8>> {
        match self {
            PreMulFactor::Value(value) => Ok(value.clone()),
            PreMulFactor::At(address) => {
                let _held = memory::hold(*address, dtype.size())?;
                Ok(pointers::bytes(*address, dtype.size()))
            }
        }
    }
}

/// The reduction that an operator's number stands for, and the factor to apply first.
pub(super) fn find(
    communicator: &FakeCommunicator,
    number: c_int,
    dtype: NcclType,
) -> NcclResult<(ReduceOperator, Option<PreMulFactor>)> {
    if let Some(reduction) = u64::try_from(number).ok().and_then(ReduceOperator::from_number) {
        return Ok((reduction, None));
    }
    let live = lock(&communicator.operators.live);
    match live.get(&number) {
        Some((own, factor)) if *own == dtype => Ok((ReduceOperator::Sum, Some(factor.clone()))),
        Some(_) => Err(NcclFailure::argument("the reduction operator is for another data type")),
        None => Err(NcclFailure::argument(format!("no reduction operator {number}"))),
    }
}

#[unsafe(no_mangle)]
extern "C" fn ncclRedOpCreatePreMulSum(
    to: *mut c_int,
    scalar: usize,
    dtype: c_int,
    residence: c_int,
    communicator: usize,
) -> i32 {
    nccl_on("ncclRedOpCreatePreMulSum", communicator, |_| {
        let communicator = FakeCommunicator::ready(communicator)?;
        let dtype = NcclType::from_number(dtype as u64)?;
        if scalar == 0 {
            return Err(NcclFailure::argument("the scalar is null"));
        }
        let factor = match residence {
            SCALAR_ON_HOST => PreMulFactor::Value(pointers::bytes(scalar, dtype.size())),
            SCALAR_ON_DEVICE => PreMulFactor::At(scalar),
            _ => return Err(NcclFailure::argument(format!("no scalar residence {residence}"))),
        };
        let mut live = lock(&communicator.operators.live);
        let number = live.last_key_value().map_or(FIRST, |(last, _)| last + 1);
        answer(to, number)?;
        live.insert(number, (dtype, factor));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclRedOpDestroy(number: c_int, communicator: usize) -> i32 {
    nccl_on("ncclRedOpDestroy", communicator, |_| {
        let communicator = FakeCommunicator::find(communicator)?;
        let removed = lock(&communicator.operators.live).remove(&number);
        removed.map(|_| ()).ok_or_else(|| NcclFailure::argument(format!("no operator {number}")))
    })
}
