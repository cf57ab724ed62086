//! A working directory, a database of its own, and the binary in it.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use counterfoil_testkit::server;
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection, SqlSafeStr as _};
use tempfile::TempDir;

/// Longer than anything here takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Polls until the answer is there.
#[track_caller]
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(started.elapsed() < PATIENCE, "still not: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Where a test lives.
pub struct Home {
    directory: TempDir,
    database: Option<String>,
    /// What the end of the test does to the server.
    clean_up: Option<(String, String)>,
}

/// The default database, locked until this is dropped.
pub struct Lock {
    _connection: sqlx::SqliteConnection,
    _runtime: tokio::runtime::Runtime,
}

/// What a command did.
#[derive(Debug)]
pub struct Done {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Home {
    /// An empty directory; the database is the default one in it.
    pub fn sqlite() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self {
            directory,
            database: None,
            clean_up: None,
        }
    }

    /// An empty schema on the PostgreSQL server for tests.
    pub fn postgres() -> Option<Self> {
        let server = server::postgres()?;
        let schema = unique();
        execute(&server, &format!("CREATE SCHEMA {schema}"));
        let and = if server.contains('?') { '&' } else { '?' };
        let database = format!("{server}{and}options=-c%20search_path%3D{schema}");
        let clean_up = Some((server, format!("DROP SCHEMA {schema} CASCADE")));
        Some(Self {
            directory: tempfile::tempdir().unwrap(),
            database: Some(database),
            clean_up,
        })
    }

    /// An empty database on the MySQL or MariaDB server for tests.
    pub fn mysql() -> Option<Self> {
        let server = server::mysql()?;
        let name = unique();
        execute(&server, &format!("CREATE DATABASE {name}"));
        let (address, query) = server.split_once('?').unwrap_or((&server, ""));
        let host = address.splitn(4, '/').take(3).collect::<Vec<_>>().join("/");
        let database = format!("{host}/{name}?{query}");
        let clean_up = Some((server, format!("DROP DATABASE {name}")));
        Some(Self {
            directory: tempfile::tempdir().unwrap(),
            database: Some(database),
            clean_up,
        })
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The database's URL, if it is not the default one.
    pub fn database(&self) -> Option<&str> {
        self.database.as_deref()
    }

    /// The default database's file.
    pub fn file(&self) -> PathBuf {
        self.path().join("counterfoil-data/counterfoil.db")
    }

    /// Runs statements on the test's database, past the product.
    pub fn execute(&self, sql: &str) {
        let sqlite = || format!("sqlite:{}", self.file().display());
        execute(&self.database.clone().unwrap_or_else(sqlite), sql);
    }

    /// The number that a query on the test's database gives.
    pub fn number(&self, sql: &str) -> i64 {
        let sqlite = || format!("sqlite:{}", self.file().display());
        number(&self.database.clone().unwrap_or_else(sqlite), sql)
    }

    /// Lets an hour pass for the requests that are remembered: leases end, and doubts grow old.
    pub fn an_hour_later(&self) {
        let hour = match self.database() {
            None => "3600000",
            Some(url) if url.starts_with("postgres") => "interval '1 hour'",
            Some(_) => "INTERVAL 1 HOUR",
        };
        self.execute(&format!(
            "UPDATE counterfoil_guard
             SET updated_at = updated_at - {hour}, lease_until = lease_until - {hour}"
        ));
    }

    /// Lets the leases end, and no other time pass.
    pub fn leases_end(&self) {
        self.execute("UPDATE counterfoil_guard SET lease_until = updated_at");
    }

    /// Keeps everybody else from writing to the default database.
    pub fn lock(&self) -> Lock {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let url = format!("sqlite:{}", self.file().display());
        let connection = runtime.block_on(async {
            let mut connection = sqlx::SqliteConnection::connect(&url).await.unwrap();
            let begin = sqlx::raw_sql("BEGIN IMMEDIATE");
            begin.execute(&mut connection).await.unwrap();
            connection
        });
        Lock {
            _connection: connection,
            _runtime: runtime,
        }
    }

    /// Writes `counterfoil.toml`.
    pub fn configure(&self, text: &str) -> &Self {
        std::fs::write(self.path().join("counterfoil.toml"), text).unwrap();
        self
    }

    /// Writes `counterfoil.toml` again, with something else in the place of this.
    #[track_caller]
    pub fn amend(&self, this: &str, other: &str) -> &Self {
        let text = std::fs::read_to_string(self.path().join("counterfoil.toml")).unwrap();
        assert!(text.contains(this), "{this:?} is not in {text}");
        self.configure(&text.replace(this, other))
    }

    /// The binary, with these arguments and nothing from the environment of the test.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_counterfoil"));
        command
            .args(args)
            .current_dir(self.path())
            .stdin(Stdio::null());
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("COUNTERFOIL_")) {
            command.env_remove(name);
        }
        command.env("USER", "ann");
        if let Some(database) = &self.database {
            command.env("COUNTERFOIL_DATABASE", database);
        }
        command
    }

    /// Runs a command to its end.
    pub fn run(&self, args: &[&str]) -> Done {
        let output = self.command(args).output().unwrap();
        Done {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Runs a command that must succeed, and gives what it printed.
    #[track_caller]
    pub fn ok(&self, args: &[&str]) -> String {
        let done = self.run(args);
        assert_eq!(done.code, Some(0), "{args:?}: {done:?}");
        done.out
    }

    /// Runs a command that must succeed and prints JSON.
    #[track_caller]
    pub fn json(&self, args: &[&str]) -> Value {
        let args: Vec<&str> = args.iter().copied().chain(["--json"]).collect();
        serde_json::from_str(&self.ok(&args)).unwrap()
    }

    /// Runs a command that must fail with this code and one line about it, which is given back.
    #[track_caller]
    pub fn refused(&self, args: &[&str], code: i32) -> String {
        let done = self.run(args);
        assert_eq!(done.code, Some(code), "{args:?}: {done:?}");
        let lines: Vec<&str> = done
            .err
            .lines()
            .filter(|l| l.starts_with("error: "))
            .collect();
        assert_eq!(lines.len(), 1, "{args:?}: {done:?}");
        assert!(!done.err.contains("panicked"), "{done:?}");
        lines[0].to_owned()
    }

    /// Starts `serve` on a free port.
    pub fn serve(&self) -> Served {
        self.serve_with(&[])
    }

    pub fn serve_with(&self, more: &[&str]) -> Served {
        let args = ["serve", "--listen", "127.0.0.1:0"];
        self.serve_as(&[&args, more].concat())
    }

    /// Starts `serve` with these arguments and no others.
    pub fn serve_as(&self, args: &[&str]) -> Served {
        let mut child = self
            .command(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut gateway = None;
        let address = lines.by_ref().map(Result::unwrap).find_map(|line| {
            let rest = line.split_once("://")?.1;
            let address = rest.split(' ').next().unwrap().to_owned();
            match line.split(' ').next() {
                Some("listening") => Some(address),
                Some("gateway") => {
                    gateway = Some(address);
                    None
                }
                _ => None,
            }
        });
        let Some(address) = address else {
            let mut err = String::new();
            child
                .stderr
                .take()
                .unwrap()
                .read_to_string(&mut err)
                .unwrap();
            panic!("serve did not start: {err}");
        };
        // Somebody has to read on, or the process would wait for it.
        std::thread::spawn(move || lines.for_each(drop));
        let stderr = child.stderr.take().unwrap();
        let log = std::thread::spawn(move || {
            let mut text = String::new();
            BufReader::new(stderr).read_to_string(&mut text).unwrap();
            text
        });
        Served {
            child,
            address,
            gateway,
            log: Some(log),
        }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if let Some((server, sql)) = &self.clean_up
            && !std::thread::panicking()
        {
            execute(server, sql);
        }
    }
}

/// A running `serve`.
pub struct Served {
    child: Child,
    /// Host and port.
    pub address: String,
    /// Host and port of the gateway, where there is one.
    pub gateway: Option<String>,
    log: Option<std::thread::JoinHandle<String>>,
}

impl Served {
    /// Sends a signal by its name.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .args(["-s", name, &self.child.id().to_string()])
            .status();
        assert!(sent.unwrap().success());
    }

    /// The most memory that it has had, in KiB.
    pub fn most_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
        let words = line.unwrap().trim().split(' ').next();
        words.unwrap().parse().unwrap()
    }

    /// Waits for the end; gives how it ended and what was logged.
    #[track_caller]
    pub fn end(mut self) -> (ExitStatus, String) {
        let status = until("the end of serve", || self.child.try_wait().unwrap());
        (status, self.log.take().unwrap().join().unwrap())
    }

    /// Stops it in order.
    #[track_caller]
    pub fn stop(self) {
        self.signal("TERM");
        let (status, log) = self.end();
        assert!(status.success(), "{status}: {log}");
        assert!(!log.contains("panicked"), "{log}");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Only when a test failed before it stopped it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn unique() -> String {
    format!(
        "cli_{}",
        counterfoil_core::MessageId::new().as_uuid().simple()
    )
}

fn execute(url: &str, sql: &str) {
    let sql = AssertSqlSafe(sql.to_owned());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        match url.split(':').next().unwrap() {
            "sqlite" => {
                let mut connection = sqlx::SqliteConnection::connect(url).await.unwrap();
                sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
            }
            "mysql" | "mariadb" => {
                let mut connection = sqlx::MySqlConnection::connect(url).await.unwrap();
                sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
            }
            _ => {
                let mut connection = sqlx::PgConnection::connect(url).await.unwrap();
                sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
            }
        }
    });
}

fn number(url: &str, sql: &str) -> i64 {
    let sql = AssertSqlSafe(sql.to_owned());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        match url.split(':').next().unwrap() {
            "sqlite" => {
                let mut connection = sqlx::SqliteConnection::connect(url).await.unwrap();
                sqlx::query_scalar(sql)
                    .fetch_one(&mut connection)
                    .await
                    .unwrap()
            }
            "mysql" | "mariadb" => {
                let mut connection = sqlx::MySqlConnection::connect(url).await.unwrap();
                sqlx::query_scalar(sql)
                    .fetch_one(&mut connection)
                    .await
                    .unwrap()
            }
            _ => {
                let mut connection = sqlx::PgConnection::connect(url).await.unwrap();
                // Whole numbers of every size.
                let number: i64 = sqlx::query_scalar(AssertSqlSafe(format!(
                    "SELECT ({})::bigint",
                    sql.into_sql_str().as_str()
                )))
                .fetch_one(&mut connection)
                .await
                .unwrap();
                number
            }
        }
    })
}
