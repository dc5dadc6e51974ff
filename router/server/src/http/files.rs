//! `/v1/files`: what batches read and write.

use std::sync::Arc;

use axum::{
    Json,
    body::Body,
    extract::{Request, State},
    response::{IntoResponse as _, Response},
};
use http::{Version, header};
use schemars::JsonSchema;
use serde::Serialize;
use tokio_util::io::ReaderStream;

use super::{
    App,
    body::{Pieces, check_encoding, declared_length},
    form::{Form, Part, Source},
    id::Id,
    pages::{Asked, Lengths, Listed, Page, json_of},
};
use crate::{
    api::batches::check_lifetime,
    error::{ApiError, shortened},
    files::{About, Draft, FileError, FileObject, Files, LIFETIME_S, Purpose},
    generate::Terms,
};

const PAGE: Lengths = Lengths { usual: 10_000, most: 10_000 };
/// What a form has beside its file.
const AROUND_FILE: u64 = 64 << 10;
/// Of a file's name, in characters; file systems have the same bound.
const FILENAME_MAX: usize = 255;

pub(super) async fn create(State(app): State<App>, terms: Terms, request: Request) -> Response {
    let is_http1 = request.version() < Version::HTTP_2;
    match created(&app, terms, request).await {
        Ok(file) => Json(file).into_response(),
        // What is left of the body stays unread, so that the connection carries no more requests: its client has to know.
        Err(error) if is_http1 => ([(header::CONNECTION, "close")], error).into_response(),
        Err(error) => error.into_response(),
    }
}

async fn created(app: &App, terms: Terms, request: Request) -> Result<FileObject, ApiError> {
    check_encoding(request.headers())?;
    let files = app.batches()?.files();
    let content_type =
        request.headers().get(header::CONTENT_TYPE).map_or("", |value| value.to_str().unwrap_or("")).to_owned();
    files.refuse_too_large(declared_length(request.headers()).unwrap_or(0).saturating_sub(AROUND_FILE))?;
    let mut form = Form::new(&content_type, Pieces::of(request.into_body(), app))?;
    let mut upload = Upload::default();
    while let Some(part) = form.next().await? {
        upload.take(part, &mut form, files).await?;
    }
    let (draft, about) = upload.whole(terms.tenant)?;
    Ok(draft.keep(about).await?.object())
}

/// A form's parts, in whatever order they come.
#[derive(Default)]
struct Upload {
    file: Option<(Draft, String)>,
    purpose: Option<Purpose>,
    anchor: Option<String>,
    lifetime_s: Option<u64>,
}

impl Upload {
    async fn take<P: Source>(&mut self, part: Part, form: &mut Form<P>, files: &Arc<Files>) -> Result<(), ApiError> {
        let is_twice = match part.name.as_str() {
            "file" if part.filename.is_none() => {
                let allowed = "a file: a part with a `filename`, as of `curl -F file=@NAME`";
                return Err(ApiError::invalid("file", "a plain value", allowed));
            }
            "file" if self.file.is_none() => {
                let mut draft = files.draft().await?;
                while let Some(piece) = form.piece().await? {
                    draft.write_bounded(&piece).await?;
                }
                let name = part.filename.unwrap_or_default().chars().take(FILENAME_MAX).collect();
                self.file.replace((draft, name)).is_some()
            }
            "file" => true,
            "purpose" => {
                let text = form.text("purpose").await?;
                self.purpose.replace(purpose(&text, &[Purpose::Batch])?).is_some()
            }
            "expires_after[anchor]" => {
                let anchor = form.text(&part.name).await?;
                if anchor != "created_at" {
                    return Err(ApiError::invalid(part.name, format_args!("\"{}\"", shortened(&anchor)), "created_at"));
                }
                self.anchor.replace(anchor).is_some()
            }
            "expires_after[seconds]" => {
                let text = form.text(&part.name).await?;
                // What is no number is told like a number out of bounds.
                let seconds = check_lifetime(&part.name, text.parse().unwrap_or(0))?;
                self.lifetime_s.replace(seconds).is_some()
            }
            name => return Err(ApiError::Unknown { param: shortened(name), nearest: None }),
        };
        if is_twice {
            return Err(ApiError::Conflict { param: part.name, reason: "is given twice".to_owned() });
        }
        Ok(())
    }

    fn whole(self, tenant: u64) -> Result<(Draft, About), ApiError> {
        let missing = |param: &str, allowed| ApiError::Missing { param: param.to_owned(), allowed };
        let (draft, filename) = self.file.ok_or_else(|| missing("file", "a part with the file's bytes"))?;
        let purpose = self.purpose.ok_or_else(|| missing("purpose", "batch"))?;
        if self.anchor.is_some() != self.lifetime_s.is_some() {
            let reason = "needs both `anchor` and `seconds`".to_owned();
            return Err(ApiError::Conflict { param: "expires_after".to_owned(), reason });
        }
        let about = About { tenant, filename, purpose, lifetime_s: self.lifetime_s.unwrap_or(LIFETIME_S) };
        Ok((draft, about))
    }
}

fn purpose(text: &str, allowed: &[Purpose]) -> Result<Purpose, ApiError> {
    allowed.iter().copied().find(|purpose| purpose.word() == text).ok_or_else(|| {
        let words: Vec<&str> = allowed.iter().map(|purpose| purpose.word()).collect();
        ApiError::invalid("purpose", format_args!("\"{}\"", shortened(text)), words.join(" or "))
    })
}

pub(super) async fn list(State(app): State<App>, terms: Terms, query: Asked) -> Result<Json<Listed>, ApiError> {
    let mut wanted = None;
    let page = Page::read(query, PAGE, |name, value| {
        if name == "purpose" {
            wanted = Some(purpose(value, &Purpose::ALL)?);
        }
        Ok(name == "purpose")
    })?;
    let files = app.batches()?.files().list(terms.tenant, wanted);
    page.of(files.iter().map(|file| json_of(&file.object())).collect()).map(Json)
}

pub(super) async fn retrieve(State(app): State<App>, Id(id): Id, terms: Terms) -> Result<Json<FileObject>, ApiError> {
    Ok(Json(app.batches()?.files().get(&id, terms.tenant)?.object()))
}

/// The bytes as they were, streamed from the disk.
pub(super) async fn content(State(app): State<App>, Id(id): Id, terms: Terms) -> Result<Response, ApiError> {
    let files = app.batches()?.files();
    let record = files.get(&id, terms.tenant)?;
    let reader = files.read(&id, terms.tenant)?;
    let file = tokio::fs::File::open(reader.path()).await.map_err(FileError::from)?;
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, record.bytes.to_string()),
    ];
    // What is open can be read to its end, also when it is deleted meanwhile.
    Ok((headers, Body::from_stream(ReaderStream::with_capacity(file, 64 << 10))).into_response())
}

/// What a client is told when a file is gone.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct DeletedFile {
    id: String,
    object: &'static str,
    deleted: bool,
}

pub(super) async fn delete(State(app): State<App>, Id(id): Id, terms: Terms) -> Result<Json<DeletedFile>, ApiError> {
    app.batches()?.files().delete(&id, terms.tenant)?;
    Ok(Json(DeletedFile { id, object: "file", deleted: true }))
}
