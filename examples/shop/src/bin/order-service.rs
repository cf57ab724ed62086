//! The order service. See the README of this example.

use counterfoil_shop::{Any, Config, database};

#[tokio::main]
async fn main() -> Result<(), Any> {
    tracing_subscriber::fmt().init();
    let config = Config::from_env("orders", 8080);
    match config.database.starts_with("sqlite:") {
        true => database::sqlite::orders::serve(&config).await,
        false => database::postgres::orders::serve(&config).await,
    }
}
