//! `tokens`: users for load tests.

use crate::app::{self, AppError};
use crate::auth::TokenSigner;
use crate::config::StoreSettings;
use crate::domain::UserId;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use lab::terminal::complain;
use nix::fcntl::OFlag;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

#[derive(Args)]
pub struct Tokens {
    /// How many users
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    users: u64,
    /// Write here instead of to stdout
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// How long they are valid
    #[arg(long, value_name = "HOURS", default_value_t = 24 * 7, value_parser =
        clap::value_parser!(u32).range(1..=87_600))]
    hours: u32,
    /// The secret of the server they are for. When embedded, the one in DATA_DIR
    #[arg(long, env = "TOKEN_SECRET", hide_env_values = true)]
    #[arg(value_name = "SECRET")]
    token_secret: Option<String>,
    #[command(flatten)]
    store: StoreSettings,
}

pub fn mint(args: &Tokens) -> Result<(), AppError> {
    let kept = args.store.data_dir.join("token_secret");
    let was_kept = args.token_secret.is_some() || kept.exists();
    let signer = app::token_signer(args.token_secret.as_deref(), &args.store)?;
    if !was_kept {
        complain!(
            "a new secret is in {}: only a server with this DATA_DIR takes these tokens",
            kept.display()
        );
    }
    let expires_at = OffsetDateTime::now_utc() + time::Duration::hours(args.hours.into());
    let sink: Box<dyn Write> = match &args.out {
        Some(file) => {
            // A new file is for this user only. A link may lead to a file that somebody else chose;
            // those in /dev lead to open files and pipes.
            let mut options = std::fs::OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600);
            if !file.starts_with("/dev") {
                options.custom_flags(OFlag::O_NOFOLLOW.bits());
            }
            Box::new(options.open(file).map_err(AppError::io(format!("write {}", file.display())))?)
        }
        None => Box::new(io::stdout().lock()),
    };
    let progress = match io::stderr().is_terminal() {
        true => ProgressBar::new(args.users),
        false => ProgressBar::hidden(),
    };
    let style =
        ProgressStyle::with_template("{wide_bar} {human_pos}/{human_len} tokens, {per_sec}");
    if let Ok(style) = style {
        progress.set_style(style);
    }
    let out = BufWriter::with_capacity(1 << 20, sink);
    let written = write(out, args.users, &signer, expires_at, &progress);
    progress.finish_and_clear();
    match written {
        // A closed pipe (`| head`) is not an error.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        Err(source) => return Err(AppError::io("write tokens")(source)),
        Ok(()) if args.out.is_none() => {}
        Ok(()) => {
            let until = expires_at.replace_nanosecond(0).unwrap_or(expires_at);
            let until = until.format(&Rfc3339).unwrap_or_default();
            complain!("tokens: {}, valid until {until}", args.users);
        }
    }
    Ok(())
}

/// Streams the array: a million users need no memory.
fn write(
    mut out: impl Write,
    users: u64,
    signer: &TokenSigner,
    expires_at: OffsetDateTime,
    progress: &ProgressBar,
) -> io::Result<()> {
    out.write_all(b"[")?;
    for number in 0..users {
        let user = UserId::random();
        let separator = if number == 0 { "" } else { ",\n" };
        let token = signer.mint(user, "load", expires_at);
        // Neither needs escaping: a UUID and a JWT.
        let line = format!(r#"{separator}{{"user_id":"{user}","token":"{token}"}}"#);
        out.write_all(line.as_bytes())?;
        if number % 1_024 == 0 {
            progress.set_position(number);
        }
    }
    out.write_all(b"]\n")?;
    out.flush()
}
