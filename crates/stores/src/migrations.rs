//! Migrations in the binary, without a macro that would compile sqlx twice.

use sqlx::{
    SqlSafeStr,
    migrate::{Migration, MigrationType, Migrator},
};

/// The text of `migrations/NAME.sql` of the calling crate, for each name.
#[macro_export]
macro_rules! migrations {
    ($($name:literal),* $(,)?) => {
        &[$((
            $name,
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/migrations/", $name, ".sql")),
        )),*]
    };
}

/// A migrator of files named `0001_what_it_does`. Panics where a name has no number.
///
/// A newer instance may have applied more migrations, which only add: unknown ones are ignored.
pub fn migrator(files: &[(&'static str, &'static str)]) -> Migrator {
    let migration = |(name, sql): &(&'static str, &'static str)| {
        let (number, what) = name.split_once('_').expect("0001_what_it_does");
        Migration::new(
            number.parse().expect("a number"),
            what.replace('_', " ").into(),
            MigrationType::Simple,
            sql.into_sql_str(),
            false,
        )
    };
    let mut migrator = Migrator::with_migrations(files.iter().map(migration).collect());
    migrator.set_ignore_missing(true);
    migrator
}

/// Panics unless these are all the files of `folder`. For the tests of a crate that has migrations.
pub fn assert_complete(folder: &str, files: &[(&str, &str)]) {
    let mut there: Vec<String> = std::fs::read_dir(folder)
        .expect("the folder of the migrations")
        .map(|entry| entry.expect("an entry").file_name())
        .filter_map(|name| Some(name.to_str()?.strip_suffix(".sql")?.to_owned()))
        .collect();
    there.sort();
    let named: Vec<&str> = files.iter().map(|(name, _)| *name).collect();
    assert_eq!(named, there, "the list of migrations and their folder");
}
