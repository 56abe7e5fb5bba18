//! The REST service: its routes, and how it starts and stops.

mod activity;
mod auth;
mod body;
mod error;
mod order;
mod outbox;
mod purchase;
mod reconcile;
mod refusal;
mod strategy;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json, Router};
use metrics_exporter_prometheus::PrometheusHandle;
use serde::Serialize;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::clock;
use crate::config::Role;
use crate::flow::Flow;
use body::{Name, short};
use error::{Kind, Problem, ProblemDetails};

pub use reconcile::ReconciledBody;

type Shared = State<Arc<Flow>>;

/// Longest wait at a stop for background work (one batch, which ends within its own bounds), and then
/// for the database's connections.
const BACKGROUND_WAIT: Duration = Duration::from_secs(5);

#[derive(OpenApi)]
#[openapi(info(
    title = "flashlock",
    description = "Flash sales behind a lock strategy chosen per activity. Errors are RFC 9457 problem details."
))]
struct Document;

/// Serves until `stop`, then lets what is in flight end, for at most the configured time.
///
/// # Errors
/// When the listener fails. What was still at work after the time is told in the log.
pub async fn serve(
    flow: Arc<Flow>,
    listener: TcpListener,
    metrics: PrometheusHandle,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let config = &flow.app.config;
    let wait = Duration::from_secs(config.shutdown_s);
    let stopping = CancellationToken::new();
    let mut background = tokio::task::JoinSet::new();
    if config.roles.contains(&Role::Booker) {
        background.spawn(Arc::clone(&flow).booker(stopping.clone()));
    }
    if config.roles.contains(&Role::Closer) {
        background.spawn(Arc::clone(&flow).closer(stopping.clone()));
        background.spawn(Arc::clone(&flow).keeper(stopping.clone()));
    }
    if config.roles.contains(&Role::Relay) {
        background.spawn(Arc::clone(&flow).relay(stopping.clone()));
    }
    if config.roles.contains(&Role::Sweeper) {
        background.spawn(Arc::clone(&flow).sweeper(stopping.clone()));
    }
    if config.roles.contains(&Role::Reconciler) {
        background.spawn(Arc::clone(&flow).reconciler(stopping.clone()));
    }
    {
        let (flow, stopping) = (Arc::clone(&flow), stopping.clone());
        background.spawn(async move { flow.app.setup.watch(stopping).await });
    }
    let server = {
        let stopping = stopping.clone();
        async move {
            stop.await;
            stopping.cancel();
        }
    };
    let router = router(Arc::clone(&flow), metrics);
    let serving = axum::serve(listener, router)
        .with_graceful_shutdown(server)
        .into_future();
    let deadline = async {
        stopping.cancelled().await;
        tokio::time::sleep(wait).await;
    };
    tokio::select! {
        done = serving => done?,
        () = deadline => tracing::warn!("connections were still open after {} s", wait.as_secs()),
    }
    // Purchases whose buyers have left are not in any connection, and must end all the same.
    if !flow.drain(wait).await {
        tracing::error!(
            "purchases were still at work after {} s; their keys find out",
            wait.as_secs()
        );
    }
    // They have been told to stop, and end what they are at.
    let ended = async { while background.join_next().await.is_some() {} };
    if tokio::time::timeout(BACKGROUND_WAIT, ended).await.is_err() {
        tracing::warn!("background work was cut off; it is taken up again after a start");
    }
    background.abort_all();
    // It waits for every connection that is out, and a database that hangs gives none back.
    if tokio::time::timeout(BACKGROUND_WAIT, flow.app.store.close())
        .await
        .is_err()
    {
        tracing::warn!("the database did not answer the last goodbye; its connections are dropped");
    }
    Ok(())
}

/// The routes. `metrics` renders what `/metrics` answers.
pub fn router(flow: Arc<Flow>, metrics: PrometheusHandle) -> Router {
    let body_bytes_max = flow.app.config.body_bytes_max;
    // Every route is one of the document's, so that none can be left out of it.
    let (router, document) = OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(strategy::list))
        .routes(routes!(activity::create, activity::list))
        .routes(routes!(activity::read))
        .routes(routes!(activity::warm_up))
        .routes(routes!(activity::open))
        .routes(routes!(activity::pause))
        .routes(routes!(activity::change::set_strategy))
        .routes(routes!(activity::close))
        .routes(routes!(reconcile::reconcile))
        .routes(routes!(reconcile::compensations))
        .routes(routes!(purchase::buy))
        .routes(routes!(order::read))
        .routes(routes!(order::pay))
        .routes(routes!(order::cancel))
        .routes(routes!(outbox::list))
        .routes(routes!(outbox::replay))
        .routes(routes!(healthy))
        .routes(routes!(ready))
        .routes(routes!(measured))
        .routes(routes!(documented))
        .routes(routes!(problem))
        .split_for_parts();
    router
        .layer(Extension(metrics))
        .layer(Extension(Arc::new(document)))
        .fallback(async |uri: axum::http::Uri| {
            Problem::new(
                Kind::NotFound,
                format!("there is no {}; see /openapi.json", short(uri.path())),
            )
        })
        .method_not_allowed_fallback(async |method: axum::http::Method| {
            Problem::new(
                Kind::MethodNotAllowed,
                format!("it does not take {method}; see /openapi.json"),
            )
        })
        .layer(DefaultBodyLimit::max(body_bytes_max))
        .layer(CatchPanicLayer::custom(
            |_panic: Box<dyn std::any::Any + Send>| {
                Problem::new(Kind::Internal, "a defect; see the service's log").into_response()
            },
        ))
        .with_state(flow)
}

/// Says that the process is there.
#[utoipa::path(get, path = "/healthz", tag = "service", responses((status = 200)))]
async fn healthy() -> Json<serde_json::Value> {
    Json(json!({"status": "ok"}))
}

/// The counters and histograms of this process, in Prometheus' text format.
#[utoipa::path(get, path = "/metrics", tag = "service", responses((status = 200, content_type = "text/plain")))]
async fn measured(Extension(metrics): Extension<PrometheusHandle>) -> String {
    metrics.render()
}

/// This document.
#[utoipa::path(get, path = "/openapi.json", tag = "service", responses((status = 200)))]
async fn documented(
    Extension(document): Extension<Arc<utoipa::openapi::OpenApi>>,
) -> Json<Arc<utoipa::openapi::OpenApi>> {
    Json(document)
}

/// Ready to sell: the database answers. `alarms` lists activities that are about to open and are not
/// warmed up, at most 100; they do not make the process unready.
#[utoipa::path(get, path = "/readyz", tag = "service",
    responses((status = 200), (status = 503, body = ProblemDetails)))]
async fn ready(State(flow): Shared) -> Result<Response, Problem> {
    let alarms: Vec<serde_json::Value> = flow
        .late()
        .await?
        .into_iter()
        .map(|late| {
            json!({
                "activity_id": late.id.to_string(),
                "state": late.state.as_str(),
                "opens_at": clock::rfc3339(late.opens_at_ms),
                "detail": "it is about to open and is not warmed up",
            })
        })
        .collect();
    let database = flow.app.store.dialect().as_str();
    Ok(Json(json!({"status": "ready", "database": database, "alarms": alarms})).into_response())
}

/// Explains a problem type: what a `type` member refers to.
#[utoipa::path(get, path = "/problems/{name}", tag = "service", params(("name" = String, Path)),
    responses((status = 200), (status = 404, body = ProblemDetails)))]
async fn problem(Name(name): Name<String>) -> Result<Response, Problem> {
    match Kind::ALL.into_iter().find(|kind| kind.name() == name) {
        Some(kind) => Ok(Json(json!({
            "type": format!("/problems/{name}"), "title": kind.title(), "status": kind.status(),
        }))
        .into_response()),
        None => Err(Problem::new(
            Kind::NotFound,
            format!(
                "there is no problem type `{}`; see /openapi.json",
                short(&name)
            ),
        )),
    }
}

/// 201 with where the new thing is.
fn created(location: &str, body: impl Serialize) -> Response {
    answer(
        axum::http::StatusCode::CREATED,
        &[(header::LOCATION, location)],
        body,
    )
}

/// 200, and the mark of a repeat.
fn replayed(body: impl Serialize) -> Response {
    let replay = header::HeaderName::from_static("idempotent-replay");
    answer(axum::http::StatusCode::OK, &[(replay, "true")], body)
}

/// 202 with where the outcome will be, and when to look.
fn accepted(location: &str, body: impl Serialize) -> Response {
    let headers = [(header::LOCATION, location), (header::RETRY_AFTER, "1")];
    answer(axum::http::StatusCode::ACCEPTED, &headers, body)
}

fn answer(
    status: axum::http::StatusCode,
    headers: &[(header::HeaderName, &str)],
    body: impl Serialize,
) -> Response {
    let mut response = (status, Json(body)).into_response();
    for (name, value) in headers {
        if let Ok(value) = HeaderValue::from_str(value) {
            response.headers_mut().insert(name.clone(), value);
        }
    }
    response
}
