//! Out to a broker and back: one process publishes and consumes, and every message takes effect once.

use counterfoil_testkit::server;
use serde_json::{Value, json};

use crate::home::{Home, until};

/// The last parts of the two sections: where messages go, and where they come from.
struct Way {
    to: String,
    from: String,
}

/// A name that no other test uses.
fn unique() -> String {
    format!(
        "cli-{}",
        counterfoil_core::MessageId::new().as_uuid().simple()
    )
}

/// Sends 300 messages of 10 aggregates, and looks at what they did.
fn there_and_back(way: &Way) {
    let home = Home::sqlite();
    home.ok(&["migrate"]);
    home.execute("CREATE TABLE seen (n INTEGER PRIMARY KEY, number INTEGER, version INTEGER)");
    home.configure(&format!(
        "[destination.out]\nbackoff-base = \"50ms\"\nbackoff-cap = \"500ms\"\nmax-attempts = 100\n{}\n\
         [[route]]\nevents = \"*\"\nto = [\"out\"]\n\
         [[consumer]]\nname = \"stock\"\n\
         to = {{ sql = \"INSERT INTO seen (number, version) VALUES (:aggregate_id, :body/n)\" }}\n\
         [consumer.from]\n{}\n",
        way.to, way.from
    ));
    let served = home.serve();
    let order = |n: u32| -> Value {
        json!({
            "event_type": "OrderPaid", "aggregate_type": "order", "aggregate_id": n % 10,
            "version": n / 10, "payload": { "n": n / 10 },
        })
    };
    // The first one waits until the consumer has made what it receives from. Refused for several
    // aggregates, the queue would be paused.
    let probe = json!({ "event_type": "Probe", "aggregate_id": "probe", "payload": { "n": 0 } });
    served
        .post(json!({ "messages": [probe] }).to_string())
        .stored();
    until("the first message", || {
        (home.number("SELECT COUNT(*) FROM seen") >= 1).then_some(())
    });
    home.execute("DELETE FROM seen");
    let list: Vec<Value> = (0..300).map(order).collect();

    served
        .post(json!({ "messages": list }).to_string())
        .stored();
    until("every message", || {
        (home.number("SELECT COUNT(*) FROM seen") >= 300).then_some(())
    });

    assert_eq!(
        home.number("SELECT COUNT(DISTINCT number * 1000 + version) FROM seen"),
        300
    );
    let disordered = "SELECT COUNT(*) FROM seen a JOIN seen b \
                      ON a.number = b.number AND a.n < b.n AND a.version > b.version";
    assert_eq!(home.number(disordered), 0);
    assert_eq!(home.json(&["parked", "list"]), json!([]));
    served.stop();
}

#[test]
fn through_redis_streams() {
    let Some(url) = server::redis() else { return };
    let stream = unique();
    let to = format!("type = \"redis\"\nurl = \"{url}\"\nstream = \"{stream}\"\npartitions = 2");
    there_and_back(&Way {
        from: to.clone(),
        to,
    });
}

#[cfg(feature = "nats")]
#[test]
fn through_nats() {
    let Some(url) = server::nats() else { return };
    let subject = unique();
    let to = format!(
        "type = \"nats\"\nurl = \"{url}\"\nsubject = \"{subject}\"\npartitions = 2\ncreate = true"
    );
    there_and_back(&Way {
        from: to.clone(),
        to,
    });
}

#[cfg(feature = "rabbitmq")]
#[test]
fn through_rabbitmq() {
    let Some(url) = server::rabbitmq() else {
        return;
    };
    let topic = unique();
    let base = format!("type = \"rabbitmq\"\nurl = \"{url}\"\ntopic = \"{topic}\"");
    there_and_back(&Way {
        from: format!("{base}\npartitions = 2"),
        to: base,
    });
}

#[cfg(feature = "kafka")]
#[test]
fn through_kafka() {
    use krafka::admin::{CreateTopicsOptions, NewTopic};

    let Some(url) = server::kafka() else { return };
    let topic = unique();
    let servers = url.trim_start_matches("kafka://").trim_end_matches('/');
    let made = tokio::runtime::Runtime::new().unwrap().block_on(async {
        let kafka = krafka::Kafka::builder(servers).connect().await.unwrap();
        let admin = kafka.admin();
        let topic = NewTopic::new(&topic, 2, 1).unwrap();
        let made = admin.create_topics([topic], CreateTopicsOptions::default());
        made.await.unwrap()
    });
    for (_, made) in made {
        made.unwrap();
    }
    let to = format!("type = \"kafka\"\nurl = \"{url}\"\ntopic = \"{topic}\"");
    there_and_back(&Way {
        from: to.clone(),
        to,
    });
}

#[cfg(feature = "sqs")]
#[test]
fn through_sqs() {
    let Some(url) = server::sqs() else { return };
    let queue = format!("{}.fifo", unique());
    let address = url.trim_start_matches("http://").trim_end_matches('/');
    let path = format!(
        "/?Action=CreateQueue&QueueName={queue}&Attribute.1.Name=FifoQueue&Attribute.1.Value=true"
    );
    let made = crate::client::ask(address, "GET", &path, &[], b"");
    assert_eq!(made.status, 200, "{made:?}");
    let to = format!(
        "type = \"sqs\"\nendpoint = \"{url}\"\nregion = \"elasticmq\"\nqueue = \"{queue}\"\n\
         access-key-id = \"key\"\nsecret-access-key = \"secret\""
    );
    there_and_back(&Way {
        from: format!("{to}\nwait = \"1s\""),
        to,
    });
}
