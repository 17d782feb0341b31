//! The tunnel of a data service, for `horovod.tensorflow.data`.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ronde_control::settings;
use ronde_control::wire::JobKey;
use ronde_core::tunnel::{self, AnswerFn};

/// This process's end of a data service's tunnel.
#[pyclass(frozen, module = "horovod._native")]
pub(crate) struct Tunnel {
    port: u16,
    tunnel: Mutex<tunnel::Tunnel>,
}

#[pymethods]
impl Tunnel {
    #[new]
    #[pyo3(signature = (key, listen=None, answer=None))]
    fn new(key: &[u8], listen: Option<&str>, answer: Option<Py<PyAny>>) -> PyResult<Tunnel> {
        let ports = settings::host_network(|name| std::env::var(name).ok())
            .map_err(|error| PyValueError::new_err(error.to_string()))?
            .ports;
        let listen = listen.map(ip).transpose()?.map(|ip| (ip, ports));
        let answer = answer.map(|function| -> AnswerFn {
            Box::new(move |question| Python::attach(|py| call(py, &function, &question)))
        });
        let tunnel = tunnel::Tunnel::new(job_key(key)?, listen, answer)?;
        Ok(Tunnel { port: tunnel.port(), tunnel: Mutex::new(tunnel) })
    }

    #[getter]
    fn port(&self) -> u16 {
        self.port
    }

    fn reserve(&self, py: Python<'_>) -> PyResult<u16> {
        Ok(py.detach(|| self.inside().reserve())?)
    }

    fn serve(&self, py: Python<'_>, name: &str, port: u16, path: &str) -> PyResult<()> {
        Ok(py.detach(|| self.inside().serve(name, port, Path::new(path)))?)
    }

    fn reach(
        &self,
        py: Python<'_>,
        name: &str,
        path: &str,
        addresses: Vec<(String, u16)>,
    ) -> PyResult<()> {
        let addresses = addresses
            .into_iter()
            .map(|(address, port)| Ok(SocketAddr::new(ip(&address)?, port)))
            .collect::<PyResult<_>>()?;
        Ok(py.detach(|| self.inside().reach(name, Path::new(path), addresses))?)
    }

    fn retire(&self, py: Python<'_>) {
        py.detach(|| self.inside().retire());
    }

    fn linger(&self, py: Python<'_>, seconds: f64) {
        let limit = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        py.detach(|| self.inside().linger(limit));
    }

    /// Pending answers are sent first.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.inside().close());
    }
}

impl Tunnel {
    /// Call this without the interpreter lock: closing the tunnel holds this lock until the last
    /// answer, which needs the interpreter lock.
    fn inside(&self) -> MutexGuard<'_, tunnel::Tunnel> {
        self.tunnel.lock().expect("nothing panics while it holds this lock")
    }
}

/// The answer of the registry at an address, and the address that this host uses to reach it.
#[pyfunction]
pub(crate) fn tunnel_ask<'py>(
    py: Python<'py>,
    key: &[u8],
    address: &str,
    port: u16,
    question: &[u8],
    seconds: f64,
) -> PyResult<(Bound<'py, PyBytes>, String)> {
    let (key, address) = (job_key(key)?, SocketAddr::new(ip(address)?, port));
    let time_limit = Duration::try_from_secs_f64(seconds)
        .map_err(|error| PyValueError::new_err(error.to_string()))?;
    let (answer, own) = py.detach(|| tunnel::ask(&key, address, question, time_limit))?;
    Ok((PyBytes::new(py, &answer), own.to_string()))
}

fn call(py: Python<'_>, function: &Py<PyAny>, question: &[u8]) -> Option<Vec<u8>> {
    let answer = function.call1(py, (PyBytes::new(py, question),));
    match answer.and_then(|answer| answer.extract::<Vec<u8>>(py)) {
        Ok(answer) => Some(answer),
        Err(error) => {
            tracing::warn!(%error, "the registry could not answer a question");
            None
        }
    }
}

fn job_key(bytes: &[u8]) -> PyResult<JobKey> {
    let bytes = bytes.try_into().map_err(|_| {
        PyValueError::new_err(format!("a key has 32 bytes, but this one has {}", bytes.len()))
    })?;
    Ok(JobKey::from_entropy(bytes))
}

fn ip(text: &str) -> PyResult<IpAddr> {
    text.parse().map_err(|_| PyValueError::new_err(format!("`{text}` is not an IP address")))
}
