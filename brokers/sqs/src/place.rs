//! Which queue, where, and as whom.
//!
//! # Promise
//! A queue is named by its name or by its URL, and a name that SQS cannot have is found before
//! anything is sent. No secret is shown.

use std::fmt;

use percent_encoding::percent_decode_str;
use url::Url;

use crate::settings::SettingsError;

const LONGEST_NAME: usize = 80;
const FIFO: &str = ".fifo";
/// What a signature needs where a server of one's own has no regions.
const ANY_REGION: &str = "us-east-1";

/// As it was given.
#[derive(Clone, Default)]
pub(crate) struct Given {
    pub(crate) queue: String,
    pub(crate) endpoint: Option<String>,
    pub(crate) region: Option<String>,
    pub(crate) keys: Option<Keys>,
}

/// Credentials.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) id: String,
    pub(crate) secret: String,
    pub(crate) token: Option<String>,
}

/// A queue at an address.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) name: String,
    /// The URL of the queue, where it was given.
    pub(crate) url: Option<String>,
    /// Where requests go. Absent: to the service in the region.
    pub(crate) endpoint: Option<String>,
    /// Absent: as the surroundings say.
    pub(crate) region: Option<String>,
    /// Absent: from the surroundings.
    pub(crate) keys: Option<Keys>,
}

impl Place {
    /// First in, first out, by its name: SQS has no other way to say it.
    pub(crate) fn is_fifo(&self) -> bool {
        self.name.ends_with(FIFO)
    }

    /// For people.
    pub(crate) fn shown(&self) -> String {
        match (&self.endpoint, &self.region) {
            (Some(endpoint), _) => format!("sqs queue {} at {endpoint}", self.name),
            (None, Some(region)) => format!("sqs queue {} in {region}", self.name),
            (None, None) => format!("sqs queue {}", self.name),
        }
    }

    /// Checks what can be seen without the network.
    pub(crate) fn of(given: Given) -> Result<Self, SettingsError> {
        let mut place = match given.queue.contains("://") {
            true => from_queue_url(&given.queue)?,
            false => Place {
                name: given.queue,
                url: None,
                endpoint: None,
                region: None,
                keys: None,
            },
        };
        check_name(&place.name)?;
        if let Some(endpoint) = given.endpoint {
            let (endpoint, keys) = address(&endpoint).map_err(SettingsError::Endpoint)?;
            let region = region_of(&endpoint);
            place.endpoint = Some(origin(&endpoint));
            place.region = region;
            place.keys = keys.or(place.keys);
        }
        place.region = given.region.or(place.region);
        if place.region.is_none() && place.endpoint.is_some() {
            place.region = Some(ANY_REGION.into());
        }
        let region = place.region.as_deref().unwrap_or(ANY_REGION);
        if region.is_empty()
            || !region
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-')
        {
            return Err(SettingsError::Region(region.to_owned()));
        }
        if place.keys.is_some() && given.keys.is_some() {
            return Err(SettingsError::TwoCredentials);
        }
        place.keys = place.keys.or(given.keys);
        if place
            .keys
            .as_ref()
            .is_some_and(|k| k.id.is_empty() || k.secret.is_empty())
        {
            return Err(SettingsError::EmptyCredentials);
        }
        Ok(place)
    }
}

/// The name of the queue for dead letters of this one, where nobody says another.
pub(crate) fn dead_name(queue: &str) -> String {
    match queue.strip_suffix(FIFO) {
        Some(stem) => format!("{stem}-DLQ{FIFO}"),
        None => format!("{queue}-DLQ"),
    }
}

/// `sqs.eu-west-1.amazonaws.com` and `x.sqs.eu-west-1.vpce.amazonaws.com` say their region.
fn region_of(url: &Url) -> Option<String> {
    let host = url.host_str()?;
    if !host.contains(".amazonaws.") {
        return None;
    }
    let mut labels = host.split('.').skip_while(|label| *label != "sqs");
    labels.nth(1).map(ToOwned::to_owned)
}

fn from_queue_url(text: &str) -> Result<Place, SettingsError> {
    let (url, keys) = address(text).map_err(SettingsError::Queue)?;
    let path = url.path();
    let name = path.rsplit('/').next().unwrap_or_default().to_owned();
    Ok(Place {
        name,
        url: Some(format!("{}{path}", origin(&url))),
        region: region_of(&url),
        endpoint: Some(origin(&url)),
        keys,
    })
}

/// The URL and the credentials inside it.
fn address(text: &str) -> Result<(Url, Option<Keys>), String> {
    let url = Url::parse(text.trim()).map_err(|e| e.to_string())?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!(
            "it begins with http:// or https://, not {}:",
            url.scheme()
        ));
    }
    if url.host_str().is_none_or(str::is_empty) || url.port() == Some(0) {
        return Err("it names no host that can be connected to".into());
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(
            "it has a part behind `?` or `#`; inside a secret these are %3F and %23".into(),
        );
    }
    let decode = |part: &str| percent_decode_str(part).decode_utf8_lossy().into_owned();
    let keys = match (url.username(), url.password()) {
        ("", None) => None,
        (id, secret) => Some(Keys {
            id: decode(id),
            secret: decode(secret.unwrap_or_default()),
            token: None,
        }),
    };
    Ok((url, keys))
}

fn origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}

fn check_name(name: &str) -> Result<(), SettingsError> {
    let stem = name.strip_suffix(FIFO).unwrap_or(name);
    let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
    let fits = !stem.is_empty() && name.len() <= LONGEST_NAME && stem.bytes().all(legal);
    match fits {
        true => Ok(()),
        false => Err(SettingsError::Queue(format!(
            "a name has 1 to {LONGEST_NAME} letters, digits, `-` and `_`, and `.fifo` behind them \
             for a FIFO queue; it is {name:?}"
        ))),
    }
}

impl fmt::Debug for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = Place::of(self.clone());
        f.debug_struct("Queue")
            .field("shown", &place.as_ref().map(Place::shown).ok())
            .field("credentials", &place.is_ok_and(|p| p.keys.is_some()))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(queue: &str) -> Given {
        Given {
            queue: queue.into(),
            ..Given::default()
        }
    }

    #[test]
    fn a_name_or_a_url_names_a_queue() {
        let named = Place::of(queue("orders")).unwrap();
        assert_eq!((named.name.as_str(), named.url), ("orders", None));
        assert_eq!(named.region, None);
        let url = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders.fifo";
        let full = Place::of(queue(url)).unwrap();
        assert!(full.is_fifo());
        assert_eq!(full.url.as_deref(), Some(url));
        assert_eq!(full.region.as_deref(), Some("eu-west-1"));
        assert_eq!(
            full.endpoint.as_deref(),
            Some("https://sqs.eu-west-1.amazonaws.com")
        );
        let private = "https://vpce-1.sqs.us-west-2.vpce.amazonaws.com/1/a";
        let region = Place::of(queue(private)).unwrap().region;
        assert_eq!(region.as_deref(), Some("us-west-2"));
    }

    #[test]
    fn a_server_of_ones_own_needs_no_region() {
        let given = Given {
            endpoint: Some("http://key:a%2Fb@127.0.0.1:9324".into()),
            ..queue("orders")
        };

        let place = Place::of(given).unwrap();

        assert_eq!(place.endpoint.as_deref(), Some("http://127.0.0.1:9324"));
        assert_eq!(place.region.as_deref(), Some(ANY_REGION));
        let keys = place.keys.unwrap();
        assert_eq!((keys.id.as_str(), keys.secret.as_str()), ("key", "a/b"));
    }

    #[test]
    fn what_cannot_be_a_queue_is_refused() {
        let long = "x".repeat(81);
        for wrong in [
            "",
            ".fifo",
            "a b",
            "größe",
            "a.b",
            &long,
            "http://h/",
            "ftp://h/a",
        ] {
            let refused = Place::of(queue(wrong)).err().unwrap();
            assert!(matches!(refused, SettingsError::Queue(_)), "{wrong}");
        }
        for wrong in ["h:1", "http://", "http://h:0", "http://h/?a", "redis://h/"] {
            let given = Given {
                endpoint: Some(wrong.into()),
                ..queue("a")
            };
            let refused = Place::of(given).err().unwrap();
            assert!(matches!(refused, SettingsError::Endpoint(_)), "{wrong}");
        }
        let region = Given {
            region: Some("eu west".into()),
            ..queue("a")
        };
        assert!(matches!(Place::of(region), Err(SettingsError::Region(_))));
    }

    #[test]
    fn there_is_one_pair_of_keys() {
        let keys = |id: &str| Keys {
            id: id.into(),
            secret: "hunter2".into(),
            token: None,
        };
        let two = Given {
            keys: Some(keys("b")),
            ..queue("http://a:hunter2@h/q")
        };
        assert_eq!(Place::of(two).err(), Some(SettingsError::TwoCredentials));
        let empty = Given {
            keys: Some(keys("")),
            ..queue("q")
        };
        assert_eq!(
            Place::of(empty).err(),
            Some(SettingsError::EmptyCredentials)
        );
    }

    #[test]
    fn no_secret_is_shown() {
        for given in [
            queue("http://id:hunter2@h/q"),
            queue("http://id:hunter2@h/?q"),
        ] {
            assert!(!format!("{given:?}").contains("hunter2"));
            match Place::of(given) {
                Ok(place) => assert!(!place.shown().contains("hunter2")),
                Err(error) => assert!(!format!("{error:?} {error}").contains("hunter2")),
            }
        }
    }

    #[test]
    fn dead_letters_of_a_fifo_queue_go_to_a_fifo_queue() {
        assert_eq!(dead_name("orders"), "orders-DLQ");
        assert_eq!(dead_name("orders.fifo"), "orders-DLQ.fifo");
    }
}
