//! What happens, as it happens.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State as AppState;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use sloplet_ledger::{Filter, LedgerError, Reader, Record};
use tokio::sync::broadcast;

use super::audit::{View, Which};
use super::extract::Params;
use crate::app::App;
use crate::auth::Access;
use crate::error::ApiError;

/// How often a silent stream says that it is still there.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Records of other processes are looked for so often; this server's own are heard of at once.
const LOOK: Duration = Duration::from_millis(250);

/// Records that are looked at in one go, and bytes of those that are kept of them: there may be many who look, and read slowly.
const BATCH: (usize, usize) = (1000, 16 * 1024);

/// Follow what happens as server-sent events, from now on or from the record behind `after`.
///
/// An event's name is the record's kind, its id the record's number, its data the record as it was written. An
/// `EventSource` that reconnects goes on where it was.
#[utoipa::path(get, path = "/events", tag = "audit",
    params(Which, ("Last-Event-ID" = Option<String>, Header, pattern = "^[0-9]{1,15}$", description = "Number of the last record that was seen.")),
    responses((status = 200, content_type = "text/event-stream", body = String)))]
pub async fn events(
    AppState(app): AppState<App>,
    access: Access,
    Params(which): Params<Which>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let seen = match headers.get("last-event-id").map(|value| value.to_str().unwrap_or("?")) {
        None | Some("") => (which.after > 0 || which.since.is_some()).then_some(which.after),
        Some(text) => Some(text.parse().map_err(|_| ApiError::bad_request("Last-Event-ID must be a number"))?),
    };
    let view = View::of(access);
    // Before the end is looked up: nothing is missed in between.
    let news = app.ledger().subscribe();
    let asked = view.clone();
    let (filter, reader) = app
        .look(move |app| {
            let filter = asked.filter(app, &which)?;
            let after_seq = seen.map_or_else(|| app.ledger().last_seq(), Ok)?;
            let reader = app.ledger().query(Filter { after_seq, ..Filter::default() })?;
            Ok((Filter { after_seq, ..filter }, reader))
        })
        .await?;
    let state = Following { app, view, filter, reader: Some(reader), news, waiting: VecDeque::new() };
    let events = stream::unfold(state, |mut state| async move {
        let event = state.next().await?;
        Some((Ok::<_, Infallible>(event), state))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response())
}

struct Following {
    app: App,
    view: View,
    filter: Filter,
    /// Always there but while it reads.
    reader: Option<Reader>,
    news: broadcast::Receiver<Arc<Record>>,
    waiting: VecDeque<Record>,
}

impl Following {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(record) = self.waiting.pop_front() {
                // JSON has no line ends of its own, so nothing inside can end an event.
                return Some(Event::default().event(&record.kind).id(record.seq.to_string()).data(record.line()));
            }
            if self.read_on().await? == 0 {
                // Whatever it is that was told, the file has it.
                let _ = tokio::time::timeout(LOOK, self.news.recv()).await;
                while self.news.try_recv().is_ok() {}
            }
        }
    }

    /// Reads some records, and keeps those that are wanted. Returns how many there were.
    async fn read_on(&mut self) -> Option<usize> {
        let mut reader = self.reader.take()?;
        let (view, filter) = (self.view.clone(), self.filter.clone());
        let read = self.app.look(move |app| {
            let (mut looked_at, mut bytes, mut found) = (0, 0, Vec::new());
            while looked_at < BATCH.0 && bytes < BATCH.1 {
                match reader.next() {
                    None => break,
                    Some(Err(LedgerError::Damaged { .. })) => {}
                    Some(record) => {
                        let record = record?;
                        if filter.matches(&record) {
                            bytes += record.line().len();
                            found.push(record);
                        }
                    }
                }
                looked_at += 1;
            }
            if view.is_partial() && !found.is_empty() {
                app.origins().read_on(&app.config().data)?;
                found.retain(|record| view.shows(app, record));
            }
            Ok((reader, looked_at, found))
        });
        let (reader, looked_at, found) = match read.await {
            Ok(read) => read,
            Err(error) => {
                tracing::error!(error = error.message, "cannot read the ledger");
                return None;
            }
        };
        self.reader = Some(reader);
        self.waiting.extend(found);
        Some(looked_at)
    }
}
