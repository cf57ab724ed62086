//! `cargo xtask bench gateway`: what the gateway costs, next to nginx as a plain reverse proxy for
//! the same service.
//!
//! Both proxies, the service (another nginx), PostgreSQL and the asker share the machine. nginx and
//! the gateway are asked in turns, in the same run, over the same number of connections.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Parser, ValueEnum};
use counterfoil_benches::endpoint::Load;
use counterfoil_benches::proxy::asker::{Ask, ask};
use counterfoil_benches::proxy::clients::{Taken, many};
use counterfoil_benches::proxy::counterfoil::{GUARDED, Gateway, PASSING};
use counterfoil_benches::proxy::nginx::Nginx;
use counterfoil_benches::{Report, median};
use sqlx::Connection as _;
use sqlx::postgres::PgConnection;

#[derive(Clone, Copy, ValueEnum)]
enum Store {
    Postgres,
}

/// Measures the gateway next to nginx: requests per second, 99th percentile, memory.
#[derive(Parser)]
struct Options {
    /// The database of the guard.
    #[arg(long, value_enum, default_value = "postgres")]
    store: Store,
    /// Print one JSON object as the last line.
    #[arg(long)]
    json: bool,
    /// Shorter runs; ratios become rough.
    #[arg(long)]
    quick: bool,
    /// Rounds of everything, one after the other; the medians are reported.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 4)]
    seconds: u64,
    /// Connections of the asker, each with one request at a time.
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Callers at one time for the measurement of memory; none leaves it out.
    #[arg(long, default_value_t = 1_000)]
    clients: usize,
    /// Only measurements whose name begins with this, for a profiler. No ratios then.
    #[arg(long)]
    only: Option<String>,
}

/// Keys of the replays.
const KEYS: u64 = 100;
/// A caller of the thousand asks once in this time.
const PAUSE: Duration = Duration::from_secs(1);
/// For how long the thousand are there.
const CROWD: Duration = Duration::from_secs(12);
/// The memory for copies of answers.
const CACHE: &str = "64 MB";

/// One thing that is measured.
struct Way {
    name: &'static str,
    address: SocketAddr,
    ask: Ask,
    what: &'static str,
}

/// Everything that runs. The proxies end before the service.
struct Stage {
    nginx: Nginx,
    plain: Gateway,
    copying: Gateway,
    _service: Nginx,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let Store::Postgres = options.store;
    let directory = tempfile::tempdir()?;
    let workers = std::thread::available_parallelism()?.get();
    eprintln!("starting nginx ({workers} workers each, as service and as proxy) and two gateways");
    let database = database()?;
    let service = Nginx::service(directory.path(), workers)?;
    let home = directory.path();
    let stage = Stage {
        nginx: Nginx::proxy(home, workers, service.address)?,
        plain: Gateway::start("gateway", home, &database, service.address, None)?,
        copying: Gateway::start("copying", home, &database, service.address, Some(CACHE))?,
        _service: service,
    };
    let report = measure(&options, &stage)?;
    drop(stage);
    if options.json {
        println!("{}", report.json());
    }
    Ok(())
}

/// A schema of our own, which the gateways fill.
fn database() -> anyhow::Result<String> {
    let url = std::env::var("COUNTERFOIL_TEST_POSTGRES_URL").map_err(|_| {
        anyhow::anyhow!("set COUNTERFOIL_TEST_POSTGRES_URL, or run `cargo xtask bench gateway`")
    })?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut admin = PgConnection::connect(&url).await?;
        sqlx::raw_sql(
            "DROP SCHEMA IF EXISTS counterfoil_bench CASCADE; CREATE SCHEMA counterfoil_bench",
        )
        .execute(&mut admin)
        .await?;
        admin.close().await
    })?;
    let joint = if url.contains('?') { '&' } else { '?' };
    Ok(format!(
        "{url}{joint}options=-c%20search_path%3Dcounterfoil_bench"
    ))
}

fn ways(stage: &Stage) -> Vec<Way> {
    let (nginx, plain) = (stage.nginx.address, stage.plain.address);
    let way = |name, address, ask, what| Way {
        name,
        address,
        ask,
        what,
    };
    vec![
        way("nginx", nginx, Ask::Get(PASSING), "nginx, GET"),
        way("pass", plain, Ask::Get(PASSING), "gateway, GET passes"),
        way("nginx_post", nginx, Ask::Post(PASSING), "nginx, POST"),
        way(
            "pass_post",
            plain,
            Ask::Post(PASSING),
            "gateway, POST passes",
        ),
        way(
            "replay",
            stage.copying.address,
            Ask::Again(GUARDED, KEYS),
            "gateway, replay from memory",
        ),
        way(
            "replay_sql",
            plain,
            Ask::Again(GUARDED, KEYS),
            "gateway, replay from PostgreSQL",
        ),
        way(
            "first",
            plain,
            Ask::First(GUARDED, 0),
            "gateway, first time on PostgreSQL",
        ),
    ]
}

/// A number that no earlier run has had.
fn run_number() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(1, |d| u64::try_from(d.as_micros()).unwrap_or(1))
}

fn one(way: &Way, options: &Options, time: Duration) -> anyhow::Result<Load> {
    let what = match way.ask {
        Ask::First(path, _) => Ask::First(path, run_number()),
        other => other,
    };
    ask(way.address, what, options.connections, time)
}

fn measure(options: &Options, stage: &Stage) -> anyhow::Result<Report> {
    let mut ways = ways(stage);
    if let Some(only) = &options.only {
        ways.retain(|way| way.name.starts_with(only.as_str()));
        anyhow::ensure!(
            !ways.is_empty(),
            "--only must begin the name of a measurement"
        );
    }
    let time = Duration::from_secs(if options.quick {
        1
    } else {
        options.seconds.max(1)
    });
    let runs = if options.quick {
        1
    } else {
        options.runs.max(1)
    };
    eprintln!("answering the keys of the replays once, and warming up");
    remember(stage)?;
    for way in &ways {
        one(way, options, Duration::from_secs(1))?;
    }
    let mut loads: Vec<Vec<Load>> = vec![Vec::new(); ways.len()];
    for run in 1..=runs {
        let mut line = format!("round {run} of {runs}:");
        for (n, way) in ways.iter().enumerate() {
            let load = one(way, options, time)?;
            line += &format!(" {} {:.0}/s", way.name, load.rps);
            loads[n].push(load);
        }
        eprintln!("{line}");
    }
    let crowd = crowd(options, stage)?;
    Ok(report(options, &ways, &loads, crowd, stage))
}

/// Lets every key of the replays be answered once; copies in memory are made by a replay.
fn remember(stage: &Stage) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        use counterfoil_benches::proxy::asker::Line;
        let mut line = Line::connect(stage.plain.address).await?;
        for number in 0..KEYS {
            line.begin(Ask::Again(GUARDED, KEYS), number).await?;
        }
        anyhow::Ok(())
    })
}

fn crowd(options: &Options, stage: &Stage) -> anyhow::Result<Option<Taken>> {
    if options.clients == 0 || options.only.is_some() {
        return Ok(None);
    }
    eprintln!("{} callers at one time", options.clients);
    let asks = [
        Ask::Get(PASSING),
        Ask::Again(GUARDED, KEYS),
        Ask::Post(PASSING),
        Ask::First(GUARDED, run_number()),
    ];
    let gateway = &stage.copying;
    let time = if options.quick { CROWD / 3 } else { CROWD };
    let taken = many(
        gateway.address,
        &gateway.program,
        options.clients,
        &asks,
        PAUSE,
        time,
    )?;
    Ok(Some(taken))
}

fn report(
    options: &Options,
    ways: &[Way],
    loads: &[Vec<Load>],
    crowd: Option<Taken>,
    stage: &Stage,
) -> Report {
    let mut report = Report::default();
    let middle = |name: &str, part: fn(&Load) -> f64| {
        let way = ways.iter().position(|way| way.name == name)?;
        Some(median(&mut loads[way].iter().map(part).collect::<Vec<_>>()))
    };
    let nginx = middle("nginx", |l| l.rps);
    println!(
        "{:<36} {:>10} {:>9} {:>9}",
        "", "requests/s", "p99 ms", "to nginx"
    );
    for way in ways {
        let rps = middle(way.name, |l| l.rps).unwrap_or_default();
        let p99 = middle(way.name, |l| l.p99_ms).unwrap_or_default();
        report.note(&format!("{}_rps", way.name), rps);
        report.note(&format!("{}_p99_ms", way.name), p99);
        // Like is compared with like; a replay with what nginx does at its best.
        let base = match way.name {
            "pass_post" => middle("nginx_post", |l| l.rps),
            _ => nginx,
        };
        let ratio = base.filter(|_| options.only.is_none()).map(|b| rps / b);
        let shown = ratio.map_or(String::new(), |r| format!("{r:.2}"));
        println!("{:<36} {rps:>10.0} {p99:>9.2} {shown:>9}", way.what);
        if let Some(ratio) = ratio.filter(|_| !way.name.starts_with("nginx")) {
            report.note(&format!("{}_ratio", way.name), ratio);
        }
    }
    if let Some(taken) = crowd {
        report.note("rss_mb", taken.rss_mb);
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        for (name, count) in [
            ("rss_clients", options.clients as f64),
            ("rss_sockets", taken.sockets as f64),
            ("rss_requests", taken.requests as f64),
        ] {
            report.note(name, count);
        }
        println!(
            "gateway with {} callers: {:.1} MB, {} sockets, {} requests meanwhile",
            options.clients, taken.rss_mb, taken.sockets, taken.requests
        );
    }
    let peak = |gateway: &Gateway| gateway.program.memory_mb("VmHWM");
    // The system's own mark may lag a little behind.
    let peak = peak(&stage.plain).max(peak(&stage.copying));
    let peak = peak.max(crowd.map_or(0.0, |taken| taken.rss_mb));
    let peak = report.note("peak_mb", peak);
    println!("gateway at its highest: {peak} MB");
    report
}
