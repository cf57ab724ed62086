//! SQLite.
use super::*;
/// x
pub struct Sqlite;
impl Sqlite {
    /// x
    pub async fn open() -> anyhow::Result<Postgres> {
        anyhow::bail!("later")
    }
}
