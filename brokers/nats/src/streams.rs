//! Streams: finding, making and judging them.
//!
//! # Promise
//! A stream is made only where that was asked for, and then it keeps everything in files. One that
//! is there is never changed.

use std::time::Duration;

use serde_json::{Value, json};

use crate::link::{Live, Trouble};
use crate::settings::Create;

/// JetStream knows no stream of this name.
const NO_STREAM: u64 = 10_059;

/// The stream that takes a subject.
pub(crate) async fn find(
    live: &Live,
    subject: &str,
    wait: Duration,
) -> Result<Option<String>, Trouble> {
    let question = json!({ "subject": subject });
    let answer = live.ask("STREAM.NAMES", &question, wait).await?;
    let first = answer["streams"].get(0).and_then(Value::as_str);
    Ok(first.map(ToOwned::to_owned))
}

/// The settings of a stream.
pub(crate) async fn config(live: &Live, stream: &str, wait: Duration) -> Result<Value, Trouble> {
    let question = format!("STREAM.INFO.{stream}");
    match live.ask(&question, &json!({}), wait).await {
        Ok(mut answer) => Ok(answer["config"].take()),
        Err(Trouble::Api {
            code: NO_STREAM, ..
        }) => Err(Trouble::Refused(format!("there is no stream {stream}"))),
        Err(other) => Err(other),
    }
}

/// Makes a stream. That it is there already, just as wanted, is no error.
pub(crate) async fn create(
    live: &Live,
    stream: &str,
    subjects: &[String],
    how: Create,
    wait: Duration,
) -> Result<(), Trouble> {
    let age = how.max_age.map_or(0, |age| age.as_nanos());
    let question = json!({
        "name": stream,
        "subjects": subjects,
        "storage": "file",
        "retention": "limits",
        "discard": "new",
        "num_replicas": how.replicas,
        "max_age": u64::try_from(age).unwrap_or_default(),
        "max_msgs": -1,
        "max_bytes": -1,
        "max_consumers": -1,
    });
    let subject = format!("STREAM.CREATE.{stream}");
    match live.ask(&subject, &question, wait).await {
        Ok(_) => {
            tracing::info!(stream, ?subjects, "made a stream");
            Ok(())
        }
        Err(Trouble::Api { error, .. }) => Err(Trouble::Refused(format!(
            "the stream {stream} cannot be made: {error}"
        ))),
        Err(other) => Err(other),
    }
}

/// The stream that takes these subjects; made when it is missing and that is wanted.
pub(crate) async fn provide(
    live: &Live,
    subjects: &[String],
    name: &str,
    how: Option<Create>,
    wait: Duration,
) -> Result<String, Trouble> {
    let first = subjects.first().map_or(name, String::as_str);
    if let Some(stream) = find(live, first, wait).await? {
        return Ok(stream);
    }
    let Some(how) = how else {
        return Err(Trouble::Refused(format!(
            "no stream takes the subject {first}"
        )));
    };
    create(live, name, subjects, how, wait).await?;
    Ok(name.to_owned())
}
