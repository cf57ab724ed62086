//! What is refused before anything is claimed, and what counts as the same request.

use axum::body::Body;
use bytes::Bytes;
use counterfoil_core::guard::RecordFilter;
use counterfoil_http::Policy;
use serde_json::json;

use crate::app::{App, pay, quick, request};
use crate::database::{Scratch, TestDb};

async fn nothing_stored<D: TestDb>(app: &App<D>) {
    let records = app.guard.records().list(&RecordFilter::default()).await;
    assert_eq!(records.unwrap(), vec![]);
    assert_eq!(app.runs(), 0);
}

pub(crate) async fn case_01_a_required_key_that_is_missing_is_refused_with_a_link<D: TestDb>(
    scratch: Scratch<D>,
) {
    let app = App::transactional(
        scratch,
        quick(),
        Policy::new().help("https://example.test/keys"),
    );

    let answer = app.send(request("POST", "/pay", None, "{}")).await;

    assert_eq!(
        (answer.status, answer.problem().as_str()),
        (400, "key-missing")
    );
    assert_eq!(
        answer.header("link"),
        Some("<https://example.test/keys>; rel=\"describedby\"")
    );
    nothing_stored(&app).await;
}

pub(crate) async fn case_02_where_the_syntax_is_strict_a_bare_key_is_refused<D: TestDb>(
    scratch: Scratch<D>,
) {
    let app = App::transactional(scratch, quick(), Policy::new().strict_syntax());

    let bare = app.pay("k", json!({"amount": 7})).await;
    nothing_stored(&app).await;
    let quoted = app.pay("\"k\"", json!({"amount": 7})).await;

    assert_eq!((bare.status, quoted.status), (400, 200));
    assert_eq!(app.runs(), 1);
}

pub(crate) async fn case_09_safe_methods_ignore_the_key<D: TestDb>(scratch: Scratch<D>) {
    let app = App::transactional(scratch, quick(), Policy::new());

    for key in [Some("k"), None] {
        let answer = app.send(request("GET", "/pay", key, "")).await;
        assert_eq!((answer.status, &answer.body[..]), (200, &b"read"[..]));
        let head = app.send(request("HEAD", "/pay", key, "")).await;
        assert_eq!(head.status, 200);
        // The router knows no such method here: the guard has let it through.
        for method in ["OPTIONS", "DELETE"] {
            let answer = app.send(request(method, "/pay", key, "")).await;
            assert_eq!(answer.status, 405, "{method}");
        }
    }
    nothing_stored(&app).await;
    assert!(Policy::new().methods([http::Method::GET]).is_err());
    assert!(Policy::new().methods([]).is_err());
}

pub(crate) async fn case_12_a_body_over_the_limit_is_refused_before_any_claim<D: TestDb>(
    scratch: Scratch<D>,
) {
    let app = App::transactional(scratch, quick(), Policy::new().max_body(100).unwrap());
    let large = "x".repeat(101);
    let part = || Ok::<_, std::io::Error>(Bytes::from(vec![b'x'; 60]));
    let parts = [part(), part()];
    let chunked = Body::from_stream(futures_util::stream::iter(parts));

    for body in [Body::from(large), chunked] {
        let answer = app.send(request("POST", "/pay", Some("k"), body)).await;
        assert_eq!(
            (answer.status, answer.problem().as_str()),
            (413, "payload-too-large")
        );
    }
    nothing_stored(&app).await;
}

pub(crate) async fn case_13_an_upload_that_breaks_off_claims_nothing<D: TestDb>(
    scratch: Scratch<D>,
) {
    let app = App::transactional(scratch, quick(), Policy::new());
    let parts = [
        Ok(Bytes::from("{\"amount\":")),
        Err(std::io::Error::other("the caller is gone")),
    ];
    let broken = Body::from_stream(futures_util::stream::iter(parts));

    let answer = app.send(request("POST", "/pay", Some("k"), broken)).await;

    assert_eq!(answer.status, 400);
    nothing_stored(&app).await;
}

pub(crate) async fn case_30_hostile_keys_are_refused_and_never_an_error_of_the_server<D: TestDb>(
    scratch: Scratch<D>,
) {
    let app = App::transactional(scratch, quick(), Policy::new());
    let (long, huge) = (format!("\"{}\"", "x".repeat(256)), "x".repeat(1 << 20));
    let hostile: [&[u8]; 9] = [
        b"",
        b"\"\"",
        b"a\tb",
        b"a b",
        b"\"open",
        "schl\u{fc}ssel".as_bytes(),
        b"\xff\xfe",
        long.as_bytes(),
        huge.as_bytes(),
    ];

    for key in hostile {
        let mut request = pay("k", json!({}));
        let value = http::HeaderValue::from_bytes(key).unwrap();
        request.headers_mut().insert("idempotency-key", value);
        let answer = app.send(request).await;
        assert_eq!(answer.status, 400, "{:?}", &key[..key.len().min(20)]);
    }
    let mut twice = pay("k", json!({}));
    twice
        .headers_mut()
        .append("idempotency-key", "k".parse().unwrap());
    assert_eq!(app.send(twice).await.status, 400);
    nothing_stored(&app).await;
    for key in [
        "k",
        &"x".repeat(255),
        "'; DROP TABLE effects; --"
            .replace(' ', "_")
            .replace(';', ":")
            .as_str(),
    ] {
        assert_eq!(app.pay(key, json!({})).await.status, 200, "{key}");
    }
    assert_eq!(
        app.pay("\"'; DROP TABLE effects; -- */\"", json!({}))
            .await
            .status,
        200
    );
    assert_eq!(app.effects().await, 4);
}

pub(crate) async fn case_33_json_in_another_spelling_is_the_same_payload<D: TestDb>(
    scratch: Scratch<D>,
) {
    let app = App::transactional(scratch, quick(), Policy::new().ignored_fields(["sent_at"]));
    let first = r#"{"amount":7,"to":"bob","sent_at":1}"#;
    let second = "{ \"to\" : \"bob\",\n\t\"sent_at\": 2, \"amount\":7 }";

    let one = app.send(request("POST", "/pay", Some("k"), first)).await;
    let two = app.send(request("POST", "/pay", Some("k"), second)).await;
    let other = app
        .send(request(
            "POST",
            "/pay",
            Some("k"),
            r#"{"amount":8,"to":"bob"}"#,
        ))
        .await;

    assert_eq!((one.status, two.replayed()), (200, true));
    assert_eq!(one.body, two.body);
    assert_eq!(other.status, 422);
}

pub(crate) async fn case_40_a_form_with_another_boundary_is_the_same_payload<D: TestDb>(
    scratch: Scratch<D>,
) {
    let app = App::transactional(scratch, quick(), Policy::new());
    let form = |boundary: &str, amount: &str| {
        let body = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"amount\"\r\n\r\n{amount}\r\n--{boundary}--\r\n"
        );
        let mut request = request("POST", "/pay", Some("k"), body);
        let kind = format!("multipart/form-data; boundary={boundary}");
        request
            .headers_mut()
            .insert("content-type", kind.parse().unwrap());
        request
    };

    let one = app.send(form("aaa", "7")).await;
    let two = app.send(form("bbb", "7")).await;
    let other = app.send(form("ccc", "8")).await;
    let broken = {
        let mut request = form("ddd", "7");
        *request.body_mut() = Body::from("--ddd\r\nnonsense");
        app.send(request).await
    };

    assert_eq!((one.status, two.status, two.replayed()), (200, 200, true));
    assert_eq!(one.body, two.body);
    assert_eq!(other.status, 422);
    assert_eq!(broken.status, 422, "another payload");
    assert_eq!(app.runs(), 1);
}

/// It is for the handler to say whether it can be read.
pub(crate) async fn a_body_that_cannot_be_looked_into_is_the_same_byte_for_byte<D: TestDb>(
    scratch: Scratch<D>,
) {
    let app = App::leased(scratch, quick(), Policy::new().ignored_fields(["sent_at"]));
    let nameless = "--a\r\nContent-Type: text/plain\r\n\r\n7\r\n--a--\r\n";
    let gzip = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
    type Case<'a> = (&'a str, Option<&'a str>, &'a [u8], &'a [u8]);
    let bodies: [Case<'_>; 4] = [
        (
            "multipart/mixed; boundary=a",
            None,
            nameless.as_bytes(),
            b"--a--\r\n",
        ),
        ("multipart/form-data; boundary=a", None, b"--a--\r\n", b""),
        ("multipart/form-data; boundary=a", None, b"", b"--a--\r\n"),
        ("application/json", Some("gzip"), &gzip, &gzip[..9]),
    ];
    for (n, (kind, coding, body, other)) in bodies.into_iter().enumerate() {
        let send = |body: &[u8]| {
            let key = n.to_string();
            let mut request = request("POST", "/raw", Some(&key), body.to_vec());
            let headers = request.headers_mut();
            headers.insert("content-type", kind.parse().unwrap());
            if let Some(coding) = coding {
                headers.insert("content-encoding", coding.parse().unwrap());
            }
            app.send(request)
        };

        let (first, again) = (send(body).await, send(body).await);

        assert_eq!((first.status, first.replayed()), (200, false), "{kind}");
        assert_eq!(
            (again.replayed(), &again.body),
            (true, &first.body),
            "{kind}"
        );
        assert_eq!(send(other).await.status, 422, "{kind}");
    }
    assert_eq!(app.runs(), 4);
}

/// Methods are case-sensitive, and many a service does not know.
pub(crate) async fn a_guarded_method_in_lower_case_is_refused<D: TestDb>(scratch: Scratch<D>) {
    let app = App::transactional(scratch, quick(), Policy::new());

    for method in ["post", "Post", "patch", "pATCH"] {
        for key in [Some("k"), None] {
            let answer = app.send(request(method, "/pay", key, "{}")).await;
            assert_eq!(
                (answer.status, answer.problem().as_str()),
                (501, "method-unknown"),
                "{method}"
            );
        }
    }
    // It is not guarded in upper case either.
    let passes = app.send(request("put", "/pay", Some("k"), "{}")).await;
    assert_eq!(passes.status, 405);
    nothing_stored(&app).await;
}

pub(crate) async fn hostile_json_is_refused<D: TestDb>(scratch: Scratch<D>) {
    let app = App::transactional(scratch, quick(), Policy::new().canonical_json());
    let deep = "[".repeat(200_000);
    let hostile: [&[u8]; 4] = [
        br#"{"amount":1,"amount":2}"#,
        deep.as_bytes(),
        b"{\"a\":\"\xff\"}",
        b"{",
    ];

    for body in hostile {
        let answer = app
            .send(request(
                "POST",
                "/pay",
                Some("k"),
                Body::from(body.to_vec()),
            ))
            .await;
        assert_eq!(
            (answer.status, answer.problem().as_str()),
            (400, "payload-malformed")
        );
    }
    nothing_stored(&app).await;
}

pub(crate) async fn an_optional_key_may_be_left_out<D: TestDb>(scratch: Scratch<D>) {
    let app = App::transactional(scratch, quick(), Policy::new().optional());

    for _ in 0..2 {
        let answer = app
            .send(request("POST", "/pay", None, r#"{"amount":1}"#))
            .await;
        assert_eq!(answer.status, 200);
    }
    let failed = app
        .send(request("POST", "/pay", None, r#"{"do":"500"}"#))
        .await;

    assert_eq!(failed.status, 500);
    assert_eq!((app.runs(), app.effects().await), (3, 2));
}

pub(crate) async fn a_caller_that_is_not_known_is_refused<D: TestDb>(scratch: Scratch<D>) {
    let app = App::transactional(scratch, quick(), Policy::new());
    let mut request = pay("k", json!({}));
    request.headers_mut().remove("x-caller");

    let answer = app.send(request).await;

    assert_eq!(
        (answer.status, answer.problem().as_str()),
        (401, "caller-unknown")
    );
    nothing_stored(&app).await;
}
