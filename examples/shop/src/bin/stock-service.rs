//! The stock service. See the README of this example.

use counterfoil_shop::{Any, Config, database};

#[tokio::main]
async fn main() -> Result<(), Any> {
    tracing_subscriber::fmt().init();
    let config = Config::from_env("stock", 8081);
    match config.database.starts_with("sqlite:") {
        true => database::sqlite::stock::serve(&config).await,
        false => database::postgres::stock::serve(&config).await,
    }
}
