//! `migrate`: create or upgrade the tables, or print the SQL that does.

use super::place;
use crate::args::{Global, Migrate};
use crate::database::{migrations, unusable};
use crate::failure::Result;
use crate::print;

pub(super) async fn run(global: &Global, args: &Migrate) -> Result {
    if args.print {
        let dialect = match args.dialect {
            Some(dialect) => dialect,
            None => place(global)?.dialect(),
        };
        return print::line(migrations(dialect)?.trim_end());
    }
    let outbox = place(global)?.open()?;
    let done = outbox.migrate().await;
    let described = outbox.describe();
    let result = done.map_err(|error| unusable(&*outbox, &error));
    outbox.close().await;
    result?;
    print::line(&format!("{described}: the tables are up to date."))
}
