//! The request's body, and the fingerprint of a request.

use axum::body::Body;
use axum::extract::OriginalUri;
use bytes::{Bytes, BytesMut};
use counterfoil_core::guard::{Fingerprint, FingerprintBuilder, canonical};
use http::request::Parts;
use http::{HeaderMap, header};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};

use super::policy::Policy;
use crate::Problem;

/// Memory that is taken for a body before it has come.
const AHEAD: usize = 64 * 1024;

/// Reads a body to its end, with what trails it, or refuses it. Never a part of it.
pub(super) async fn read(
    headers: &HeaderMap,
    body: Body,
    limit: usize,
) -> Result<(Bytes, Option<HeaderMap>), Problem> {
    let said = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.parse::<usize>().ok());
    if said.is_some_and(|n| n > limit) {
        return Err(Problem::too_large(limit));
    }
    let mut body = body;
    // Who announces much and sends little gets little.
    let mut all = BytesMut::with_capacity(said.unwrap_or(0).min(AHEAD));
    let mut trailers = None;
    while let Some(frame) = body.frame().await {
        let frame = frame
            .map_err(|_| Problem::payload_malformed("The body ended before it was complete."))?;
        match frame.into_data() {
            Ok(data) if all.len() + data.len() > limit => return Err(Problem::too_large(limit)),
            Ok(data) => all.extend_from_slice(&data),
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    Ok((all.freeze(), trailers))
}

/// A body with what trails it. Its length is not said beforehand: what trails a body fits behind
/// chunks only.
pub(crate) fn whole(bytes: Bytes, trailers: Option<HeaderMap>) -> Body {
    let Some(trailers) = trailers else {
        return Body::from(bytes);
    };
    let frames = [Frame::data(bytes), Frame::trailers(trailers)];
    let frames = frames.map(Ok::<_, std::convert::Infallible>);
    Body::new(StreamBody::new(futures_util::stream::iter(frames)))
}

/// What the request asks for: method, path, query and body. The path is the whole one, also inside
/// a nested router, which is shown the rest only.
pub(super) async fn fingerprint(
    parts: &Parts,
    body: &Bytes,
    policy: &Policy,
) -> Result<Fingerprint, Problem> {
    let uri = match parts.extensions.get::<OriginalUri>() {
        Some(OriginalUri(whole)) => whole,
        None => &parts.uri,
    };
    let target = FingerprintBuilder::new()
        .part(parts.method.as_str().as_bytes())
        .part(uri.path().as_bytes())
        .part(uri.query().unwrap_or_default().as_bytes());
    let kind = parts
        .headers
        .get(header::CONTENT_TYPE)
        .and_then(|v| v.to_str().ok())
        .unwrap_or_default();
    // What is compressed cannot be looked into.
    let plain = !parts.headers.contains_key(header::CONTENT_ENCODING);
    if let Some(boundary) = boundary(kind).filter(|_| plain)
        && let Ok(form) = of_parts(target.clone(), body, boundary).await
    {
        return Ok(form);
    }
    if policy.canonical_json && plain && is_json(kind) && !body.is_empty() {
        let text = canonical::text_of(body, &policy.ignored_fields)
            .map_err(|e| Problem::payload_malformed(format!("The JSON cannot be used: {e}.")))?;
        return Ok(target.part(b"json").part(text.as_bytes()).finish());
    }
    Ok(target.part(b"bytes").part(body).finish())
}

/// What stands between the parts of a body of any `multipart/*`.
fn boundary(kind: &str) -> Option<String> {
    let (essence, parameters) = kind.split_once(';')?;
    let many = essence.trim_start().get(..10)?;
    let form = format!("multipart/form-data;{parameters}");
    many.eq_ignore_ascii_case("multipart/")
        .then(|| multer::parse_boundary(form).ok())
        .flatten()
}

fn is_json(kind: &str) -> bool {
    let essence = kind.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
        || essence.to_ascii_lowercase().ends_with("+json")
}

/// The parts, not the boundary: a client that sends a form again makes a new one. What cannot be read as
/// a form (parts without a name, none at all) has to be the same byte for byte.
async fn of_parts(
    target: FingerprintBuilder,
    body: &Bytes,
    boundary: String,
) -> Result<Fingerprint, multer::Error> {
    let whole = futures_util::stream::iter([Ok::<_, std::convert::Infallible>(body.clone())]);
    let mut form = multer::Multipart::new(whole, boundary);
    let mut hash = target.part(b"multipart");
    while let Some(field) = form.next_field().await? {
        hash = hash.part(&field.headers().len().to_be_bytes());
        for (name, value) in field.headers() {
            hash = hash.part(name.as_str().as_bytes()).part(value.as_bytes());
        }
        let content = field.bytes().await?;
        hash = hash.part(&content);
    }
    Ok(hash.finish())
}
