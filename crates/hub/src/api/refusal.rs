//! Answers to requests that fail: a status, what is wrong, and what to do.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use ronde_control::hub::api::Refusal;

use crate::HubError;

/// A request that failed.
pub(super) struct RefusedRequest {
    status: StatusCode,
    error: String,
    hint: Option<&'static str>,
}

impl RefusedRequest {
    pub(super) fn new(status: StatusCode, error: impl Into<String>) -> RefusedRequest {
        RefusedRequest { status, error: error.into(), hint: None }
    }

    pub(super) fn hint(self, hint: &'static str) -> RefusedRequest {
        RefusedRequest { hint: Some(hint), ..self }
    }
}

impl From<HubError> for RefusedRequest {
    fn from(error: HubError) -> RefusedRequest {
        match &error {
            HubError::Refused(_) => RefusedRequest::new(StatusCode::FORBIDDEN, error.to_string())
                .hint("ask whoever runs the hub for a new invitation"),
            HubError::Invalid(_) => RefusedRequest::new(StatusCode::BAD_REQUEST, error.to_string()),
            _ => {
                // Callers learn nothing about the database.
                tracing::error!("{error}");
                let error = "the hub could not do this; its log says why";
                RefusedRequest::new(StatusCode::INTERNAL_SERVER_ERROR, error)
            }
        }
    }
}

impl IntoResponse for RefusedRequest {
    fn into_response(self) -> Response {
        let RefusedRequest { status, error, hint } = self;
        let refusal = Refusal { error, hint: hint.map(str::to_owned) };
        (status, Json(refusal)).into_response()
    }
}

pub(super) async fn not_found() -> RefusedRequest {
    RefusedRequest::new(StatusCode::NOT_FOUND, "there is nothing here")
        .hint("this hub may be older than your `ronde`; compare `ronde --version` on both")
}
