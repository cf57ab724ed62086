//! Standard Webhooks: signing what we send, and verifying it where it arrives.
//!
//! # Promise
//! A signature covers the id, the time of the attempt and every byte of the body. Comparing takes
//! the same time wherever two signatures differ. A secret is never shown: not by `Debug`, not in an
//! error.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::alphabet;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use http::HeaderMap;
use ring::hmac;

/// The header with the message's id.
pub(crate) const ID: &str = "webhook-id";
/// The header with the time of the attempt, in Unix seconds.
pub(crate) const TIMESTAMP: &str = "webhook-timestamp";
/// The header with the signatures.
pub(crate) const SIGNATURE: &str = "webhook-signature";

const PREFIX: &str = "whsec_";
const SCHEME: &str = "v1,";
/// The bounds of the specification: 192 to 512 bits.
const KEY_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// Secrets are copied by hand: missing padding is forgiven.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A key that sender and receiver share, written `whsec_<base64>`.
#[derive(Clone)]
pub struct Secret(hmac::Key);

/// Why a text is no secret. The text itself is not repeated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// The prefix is missing.
    #[error("a webhook secret begins with `whsec_`")]
    NoPrefix,
    /// What follows the prefix is not base64.
    #[error("after `whsec_`, a webhook secret is base64")]
    NotBase64,
    /// Too weak, or longer than the specification allows.
    #[error("a webhook secret is 24 to 64 bytes long before base64, this one is {0}")]
    BadLength(usize),
}

impl Secret {
    /// Reads `whsec_<base64 of 24 to 64 bytes>`. White space around it is ignored.
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        let encoded = text
            .trim()
            .strip_prefix(PREFIX)
            .ok_or(SecretError::NoPrefix)?;
        let key = LENIENT
            .decode(encoded)
            .map_err(|_| SecretError::NotBase64)?;
        if !KEY_BYTES.contains(&key.len()) {
            return Err(SecretError::BadLength(key.len()));
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &key)))
    }

    fn sign(&self, id: &str, timestamp: u64, body: &[u8]) -> String {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(format!("{id}.{timestamp}.").as_bytes());
        context.update(body);
        format!("{SCHEME}{}", STANDARD.encode(context.sign()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

/// The value of `webhook-signature`: one signature for every secret, separated by spaces.
pub(crate) fn sign_all(secrets: &[Secret], id: &str, timestamp: u64, body: &[u8]) -> String {
    let signatures: Vec<String> = secrets
        .iter()
        .map(|s| s.sign(id, timestamp, body))
        .collect();
    signatures.join(" ")
}

/// Seconds since 1970, and zero for a clock that stands before.
pub(crate) fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// Why a request is not to be trusted. Answer 401 or 400 and do nothing else with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// A header is missing or is not text.
    #[error("the header `{0}` is missing or unreadable")]
    Header(&'static str),
    /// The timestamp is not a number.
    #[error("the webhook timestamp is not a number of seconds")]
    Timestamp,
    /// The attempt was made too long ago, or lies in the future: a replay, or a wrong clock.
    #[error("the webhook timestamp is more than {0:?} away from now")]
    OutsideTolerance(Duration),
    /// No signature fits: another secret, or something was changed on the way.
    #[error("no webhook signature fits")]
    NoMatch,
}

/// For receivers: checks that a request was signed with `secret` not longer ago than `tolerance`.
///
/// Answers the message's id, which is the same over all retries: the key to recognise a repeat by.
/// `body` is the raw body, before anything has parsed it. Five minutes is a usual tolerance. During
/// a rotation, try the new secret and then the old one.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use counterfoil_webhook::{Secret, verify};
///
/// fn receive(secret: &Secret, headers: &http::HeaderMap, body: &[u8]) -> u16 {
///     match verify(secret, headers, body, SystemTime::now(), Duration::from_secs(300)) {
///         Ok(id) => { println!("message {id}"); 204 }
///         Err(_) => 401,
///     }
/// }
/// ```
pub fn verify<'h>(
    secret: &Secret,
    headers: &'h HeaderMap,
    body: &[u8],
    now: SystemTime,
    tolerance: Duration,
) -> Result<&'h str, VerifyError> {
    let id = text(headers, ID)?;
    let timestamp = text(headers, TIMESTAMP)?;
    let signatures = text(headers, SIGNATURE)?;
    let sent: u64 = timestamp.parse().map_err(|_| VerifyError::Timestamp)?;

    let mut signed = format!("{id}.{timestamp}.").into_bytes();
    signed.extend_from_slice(body);
    let fits = signatures
        .split(' ')
        .filter_map(|one| one.strip_prefix(SCHEME))
        .filter_map(|encoded| STANDARD.decode(encoded).ok())
        .any(|tag| hmac::verify(&secret.0, &signed, &tag).is_ok());
    if !fits {
        return Err(VerifyError::NoMatch);
    }
    if unix_seconds(now).abs_diff(sent) > tolerance.as_secs() {
        return Err(VerifyError::OutsideTolerance(tolerance));
    }
    Ok(id)
}

fn text<'h>(headers: &'h HeaderMap, name: &'static str) -> Result<&'h str, VerifyError> {
    let value = headers.get(name).ok_or(VerifyError::Header(name))?;
    value.to_str().map_err(|_| VerifyError::Header(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    // The vector of the Standard Webhooks reference libraries.
    const REFERENCE: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const MESSAGE: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    const SENT: u64 = 1_614_265_330;
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const EXPECTED: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

    const OTHER: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    const TOLERANCE: Duration = Duration::from_secs(300);

    fn secret(text: &str) -> Secret {
        Secret::parse(text).unwrap()
    }

    fn headers(signature: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(ID, MESSAGE.parse().unwrap());
        headers.insert(TIMESTAMP, SENT.into());
        headers.insert(SIGNATURE, signature.parse().unwrap());
        headers
    }

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn check(headers: &HeaderMap, body: &[u8], now: u64) -> Result<String, VerifyError> {
        verify(&secret(REFERENCE), headers, body, at(now), TOLERANCE).map(str::to_owned)
    }

    #[test]
    fn the_reference_vector_is_signed_as_published() {
        assert_eq!(
            sign_all(&[secret(REFERENCE)], MESSAGE, SENT, BODY),
            EXPECTED
        );
    }

    #[test]
    fn the_reference_vector_is_accepted_and_gives_its_id() {
        assert_eq!(
            check(&headers(EXPECTED), BODY, SENT),
            Ok(MESSAGE.to_owned())
        );
    }

    #[test]
    fn any_change_to_what_was_signed_is_noticed() {
        assert_eq!(
            check(&headers(EXPECTED), b"{}", SENT),
            Err(VerifyError::NoMatch)
        );

        for (name, value) in [
            (ID, "msg_other"),
            (TIMESTAMP, "1614265331"),
            (SIGNATURE, "v1,AAAA"),
        ] {
            let mut changed = headers(EXPECTED);
            changed.insert(name, value.parse().unwrap());
            assert_eq!(
                check(&changed, BODY, SENT),
                Err(VerifyError::NoMatch),
                "{name}"
            );
        }
    }

    #[test]
    fn a_signature_of_another_version_or_secret_does_not_count() {
        let asymmetric = EXPECTED.replace("v1,", "v1a,");
        assert_eq!(
            check(&headers(&asymmetric), BODY, SENT),
            Err(VerifyError::NoMatch)
        );

        let foreign = sign_all(&[secret(OTHER)], MESSAGE, SENT, BODY);
        assert_eq!(
            check(&headers(&foreign), BODY, SENT),
            Err(VerifyError::NoMatch)
        );
    }

    #[test]
    fn during_a_rotation_either_secret_verifies() {
        let both = sign_all(&[secret(OTHER), secret(REFERENCE)], MESSAGE, SENT, BODY);

        assert_eq!(both.split(' ').count(), 2);
        for one in [OTHER, REFERENCE] {
            let headers = headers(&both);
            assert!(verify(&secret(one), &headers, BODY, at(SENT), TOLERANCE).is_ok());
        }
    }

    #[test]
    fn old_and_future_attempts_are_refused() {
        let headers = headers(EXPECTED);
        let outside = Err(VerifyError::OutsideTolerance(TOLERANCE));

        assert!(check(&headers, BODY, SENT + 300).is_ok());
        assert!(check(&headers, BODY, SENT - 300).is_ok());
        assert_eq!(check(&headers, BODY, SENT + 301), outside);
        assert_eq!(check(&headers, BODY, SENT - 301), outside);
    }

    #[test]
    fn missing_and_odd_headers_are_errors_not_panics() {
        for name in [ID, TIMESTAMP, SIGNATURE] {
            let mut fewer = headers(EXPECTED);
            fewer.remove(name);
            assert_eq!(check(&fewer, BODY, SENT), Err(VerifyError::Header(name)));
        }
        let mut odd = headers(EXPECTED);
        odd.insert(TIMESTAMP, "soon".parse().unwrap());
        assert_eq!(check(&odd, BODY, SENT), Err(VerifyError::Timestamp));
    }

    #[test]
    fn bad_secrets_are_refused_without_repeating_them() {
        let short = format!("whsec_{}", STANDARD.encode([7; 23]));
        let long = format!("whsec_{}", STANDARD.encode([7; 65]));
        for (text, expected) in [
            ("", SecretError::NoPrefix),
            ("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", SecretError::NoPrefix),
            (
                "whsk_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
                SecretError::NoPrefix,
            ),
            ("whsec_top secret!", SecretError::NotBase64),
            ("whsec_", SecretError::BadLength(0)),
            (&short, SecretError::BadLength(23)),
            (&long, SecretError::BadLength(65)),
        ] {
            let error = Secret::parse(text).unwrap_err();
            assert_eq!(error, expected);
            assert!(!error.to_string().contains("top secret"));
        }
    }

    #[test]
    fn debug_hides_the_secret() {
        assert_eq!(format!("{:?}", secret(REFERENCE)), "Secret(hidden)");
    }
}
