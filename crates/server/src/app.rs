//! The routes: from a request to work for the engine, and from its answer to a response.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use serde_json::{Map, Value, json};
use spinetail_engine::Engine;
use spinetail_engine::text::{Split, TextModel};
use tokio::sync::Semaphore;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::CorsLayer;
use tracing::Instrument as _;

use crate::body::{BodyReader, RawBody};
use crate::chat::ChatRequest;
use crate::completions::{CompletionRequest, DEFAULT_MAX_TOKENS, Prompt};
use crate::connection::Peer;
use crate::error::ApiError;
use crate::guard::Guard;
use crate::ids;
use crate::options::ServeOptions;
use crate::queue::{Queue, Ticket, Update, Work};
use crate::sampling::Common;
use crate::stream;
use crate::wire::{Endpoint, Reply};

/// A client's own request id is taken over up to this length.
const MAX_ID_BYTES: usize = 128;
const REQUEST_ID: &str = "x-request-id";

/// What all requests share.
pub(crate) struct App {
    pub(crate) engine: Engine,
    pub(crate) text: Arc<TextModel>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) options: ServeOptions,
    pub(crate) guard: Guard,
    pub(crate) bodies: BodyReader,
    /// Requests that are being turned into tokens at once: it is work for a whole core.
    pub(crate) preparing: Semaphore,
    /// Positions of the session.
    pub(crate) context: usize,
    pub(crate) model: Arc<str>,
    pub(crate) started: u64,
}

/// Work for the engine, and what is needed to answer with it.
struct Prepared {
    work: Work,
    endpoint: Endpoint,
    opens_thinking: bool,
    stream: bool,
    include_usage: bool,
}

/// All routes.
pub(crate) fn router(app: Arc<App>, cors: Option<CorsLayer>) -> Router {
    let mut router = Router::new()
        .route("/health", get(health))
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completions))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .with_state(Arc::clone(&app))
        .layer(from_fn_with_state(app, admit));
    if let Some(cors) = cors {
        router = router.layer(cors);
    }
    router.layer(CatchPanicLayer::custom(panicked)).layer(axum::middleware::from_fn(observe))
}

/// Gives each request an id, which the response and every line of the log about it bear.
async fn observe(request: Request, next: Next) -> Response {
    let given = request.headers().get(REQUEST_ID).and_then(|id| id.to_str().ok());
    let is_usable =
        |id: &&str| !id.is_empty() && id.len() <= MAX_ID_BYTES && id.bytes().all(|b| b.is_ascii_graphic());
    let id = given.filter(is_usable).map_or_else(|| format!("req-{}", ids::random()), str::to_owned);
    let peer = request.extensions().get::<Peer>().map(|peer| peer.address().to_string());
    let span = tracing::info_span!("request", id, method = %request.method(), path = request.uri().path());
    async move {
        let start = Instant::now();
        let mut response = next.run(request).await;
        if let Ok(id) = HeaderValue::from_str(&id) {
            response.headers_mut().insert(REQUEST_ID, id);
        }
        let (status, ms) = (response.status().as_u16(), start.elapsed().as_millis() as u64);
        tracing::info!(status, ms, peer, "response");
        response
    }
    .instrument(span)
    .await
}

async fn admit(State(app): State<Arc<App>>, request: Request, next: Next) -> Result<Response, ApiError> {
    let open = request.uri().path() == "/health";
    app.guard.check(request.uri(), request.headers(), open)?;
    Ok(next.run(request).await)
}

fn panicked(_: Box<dyn std::any::Any + Send>) -> Response {
    tracing::error!("a request's handler panicked");
    ApiError::internal("the server failed in a way that it should not; see its log").into_response()
}

async fn unknown(request: Request) -> ApiError {
    let message = format!("Unknown request URL: {} {}.", request.method(), request.uri().path());
    ApiError::new(StatusCode::NOT_FOUND, message).code("unknown_url")
}

async fn wrong_method(request: Request) -> ApiError {
    let message = format!("{} is not what {} understands.", request.method(), request.uri().path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message).code("method_not_allowed")
}

async fn health(State(app): State<Arc<App>>) -> Response {
    let (waiting, running) = app.queue.load();
    json_response(json!({"status": "ok", "running": usize::from(running), "waiting": waiting}).to_string())
}

async fn models(State(app): State<Arc<App>>) -> Response {
    json_response(json!({"object": "list", "data": [app.model_object()]}).to_string())
}

async fn model(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Response, ApiError> {
    app.check_model(Some(&id))?;
    Ok(json_response(app.model_object().to_string()))
}

async fn chat(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Result<Response, ApiError> {
    let body = app.bodies.json(request).await?;
    let prepared = app.prepare(body, App::prepare_chat).await?;
    app.respond(prepared, peer).await
}

async fn completions(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Result<Response, ApiError> {
    let body = app.bodies.json(request).await?;
    let prepared = app.prepare(body, App::prepare_completion).await?;
    app.respond(prepared, peer).await
}

impl App {
    fn model_object(&self) -> Value {
        json!({
            "id": &*self.model, "object": "model", "created": self.started, "owned_by": "spinetail",
            "context_length": self.context
        })
    }

    /// A request without a model means the one that is served.
    fn check_model(&self, asked: Option<&str>) -> Result<(), ApiError> {
        let Some(asked) = asked else { return Ok(()) };
        if *asked == *self.model || self.options.model_aliases.iter().any(|alias| alias == asked) {
            return Ok(());
        }
        let message = format!("The model `{asked}` does not exist; this server has `{}`.", self.model);
        Err(ApiError::new(StatusCode::NOT_FOUND, message).param("model").code("model_not_found"))
    }

    /// Parsing, rendering and tokenizing a long conversation takes a while and memory; it must not hold up other
    /// connections.
    async fn prepare(
        self: &Arc<App>,
        body: RawBody,
        prepare: fn(&App, Map<String, Value>) -> Result<Prepared, ApiError>,
    ) -> Result<Prepared, ApiError> {
        let _turn = self.preparing.acquire().await;
        let app = Arc::clone(self);
        let span = tracing::Span::current();
        let prepared =
            tokio::task::spawn_blocking(move || span.in_scope(|| prepare(&app, body.parse()?))).await;
        prepared.unwrap_or_else(|error| {
            tracing::error!(%error, "preparing a prompt failed");
            Err(ApiError::internal("the server failed in a way that it should not; see its log"))
        })
    }

    fn prepare_chat(&self, map: Map<String, Value>) -> Result<Prepared, ApiError> {
        const FIELD: &str = "messages";
        let request = ChatRequest::parse(map, self.options.lenient)?;
        log_ignored(&request.ignored);
        self.check_model(request.common.model.as_deref())?;
        let prompt = self
            .engine
            .render_chat(&request.messages, None, &request.kwargs)
            .map_err(|error| ApiError::from_engine(&error, FIELD))?;
        let mut prepared =
            self.prepared(&request.common, prompt.tokens, prompt.opens_thinking, Endpoint::Chat)?;
        prepared.work.mark_at = prompt.mark_at;
        Ok(prepared)
    }

    fn prepare_completion(&self, map: Map<String, Value>) -> Result<Prepared, ApiError> {
        let vocabulary_size = self.text.tokens().vocabulary_size();
        let request = CompletionRequest::parse(map, self.options.lenient, vocabulary_size)?;
        log_ignored(&request.ignored);
        self.check_model(request.common.model.as_deref())?;
        let tokens = match request.prompt {
            Prompt::Tokens(ids) => ids,
            Prompt::Text(text) => {
                self.engine.encode(&text).map_err(|error| ApiError::from_engine(&error, "prompt"))?
            }
        };
        self.prepared(&request.common, tokens, false, Endpoint::Completion)
    }

    fn prepared(
        &self,
        common: &Common,
        prompt: Vec<u32>,
        opens_thinking: bool,
        endpoint: Endpoint,
    ) -> Result<Prepared, ApiError> {
        let (field, default_max_tokens) = match endpoint {
            Endpoint::Chat => ("messages", self.context),
            Endpoint::Completion => ("prompt", DEFAULT_MAX_TOKENS),
        };
        let options = common.options(&self.text, opens_thinking, default_max_tokens)?;
        if prompt.is_empty() {
            return Err(ApiError::bad_field(field, "the prompt is empty: there is nothing to continue"));
        }
        if prompt.len() > self.context {
            return Err(ApiError::context(field, prompt.len(), self.context));
        }
        let work = Work { prompt, mark_at: None, options, field };
        let (stream, include_usage) = (common.stream, common.include_usage);
        Ok(Prepared { work, endpoint, opens_thinking, stream, include_usage })
    }

    async fn respond(&self, prepared: Prepared, peer: Peer) -> Result<Response, ApiError> {
        let Prepared { work, endpoint, opens_thinking, stream, include_usage } = prepared;
        let reply = Reply::new(endpoint, Arc::clone(&self.model), opens_thinking, include_usage);
        let ticket = self.queue.submit(work)?;
        if stream {
            return stream::respond(ticket, reply, peer, self.options.limits.keep_alive).await;
        }
        tokio::select! {
            whole = whole(ticket, reply) => whole,
            () = peer.gone() => {
                let message = "the client closed its half of the connection, which means that nobody waits for the \
                               answer; keep it open, or ask for a stream";
                Err(ApiError::new(StatusCode::BAD_REQUEST, message).code("client_closed").closing())
            }
        }
    }
}

/// Gathers the whole answer.
async fn whole(mut ticket: Ticket, mut reply: Reply) -> Result<Response, ApiError> {
    let mut text = Split::default();
    let mut add = |piece: Split| {
        text.reasoning.push_str(&piece.reasoning);
        text.content.push_str(&piece.content);
    };
    let outcome = loop {
        match ticket.next().await {
            Update::Token(piece) => add(reply.part(piece)),
            Update::Done(outcome) => break outcome,
            Update::Failed(error) => return Err(error),
        }
    };
    add(reply.rest());
    Ok(json_response(reply.whole(text, &outcome)))
}

fn log_ignored(ignored: &[String]) {
    if !ignored.is_empty() {
        tracing::warn!(fields = ignored.join(", "), "ignored request fields");
    }
}

fn json_response(body: String) -> Response {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    (headers, Body::from(body)).into_response()
}
