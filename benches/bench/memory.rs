//! What a client who only waits costs the program in memory: an idle connection, and a page that follows
//! a sale.

use crate::{
    Error, Options, cpu,
    load::{Crowd, connect},
    process::Workspace,
    section::{Section, thousands},
    stage::{Stage, Target},
};
use serde_json::json;
use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const CLIENTS: usize = 10_000;
/// The program closes a connection that is idle for 15 s.
const SETTLE: Duration = Duration::from_secs(2);

pub async fn run(options: &Options, workspace: &Workspace) -> Result<Section, Error> {
    let clients = options.crowd(CLIENTS);
    if Crowd::of(clients, 1)? != Crowd::Fits {
        return Err(format!("{clients} connections do not fit into one process here").into());
    }
    let stage = Stage::new(options, workspace)?;
    let headings = [
        "",
        "clients",
        "before MiB",
        "with them MiB",
        "KiB each",
        "after MiB",
    ];
    let mut section = Section::new(
        "memory",
        "Clients who wait: resident memory of the program",
        &headings,
    );
    let mut figures = Vec::new();
    let mut failures = Vec::new();
    for (title, follows) in [
        ("idle keep-alive connections", false),
        ("followers of a sale (SSE)", true),
    ] {
        // A fresh server each: what the first crowd left allocated would hide the second's.
        let name = if follows { "followed" } else { "idle" };
        let target = stage.serve(name, &[("LAB", "off")])?;
        let sale = target.client.create_sale("watched", 1_000).await?;
        let pid = target.process.pid();
        let before = cpu::resident_memory(pid).unwrap_or(0);
        let path = if follows {
            format!("/api/v1/sales/{sale}/events")
        } else {
            format!("/api/v1/sales/{sale}")
        };
        let mut streams = connect(&[target.address()], 0, clients).await?;
        ask_all(&mut streams, target.address(), &path, follows).await?;
        tokio::time::sleep(SETTLE).await;
        let with = cpu::resident_memory(pid).unwrap_or(0);
        if follows && let Err(what) = all_hear(&stage, &target, &sale, &mut streams).await {
            failures.push(format!("memory: {what}"));
        }
        drop(streams);
        tokio::time::sleep(SETTLE).await;
        let after = cpu::resident_memory(pid).unwrap_or(0);
        let each = with.saturating_sub(before) as f64 / clients as f64;
        let mib = |bytes: u64| format!("{:.0}", bytes as f64 / f64::from(1 << 20));
        section.row([
            title.to_owned(),
            thousands(clients as f64),
            mib(before),
            mib(with),
            format!("{:.1}", each / 1024.0),
            mib(after),
        ]);
        figures.push(json!({
            "who": name,
            "clients": clients,
            "before_bytes": before,
            "with_bytes": with,
            "after_bytes": after,
            "bytes_each": each,
        }));
    }
    section.note(
        "Every idle connection has asked once, so it has had its buffers. Resident memory is what the system counts for \
         the process; the kernel's socket buffers are not in it.",
    );
    section.figures = json!(figures);
    section.failures = failures;
    Ok(section)
}

/// Each asks once and reads until it has been answered (an event stream: until its first event).
async fn ask_all(
    streams: &mut [TcpStream],
    address: SocketAddr,
    path: &str,
    follows: bool,
) -> Result<(), Error> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
    let end: &[u8] = if follows {
        b"event: sale"
    } else {
        b"\"server_time\""
    };
    let mut buffer = vec![0; 16 * 1024];
    for (number, stream) in streams.iter_mut().enumerate() {
        stream.write_all(request.as_bytes()).await?;
        read_until(stream, &mut buffer, end)
            .await
            .map_err(|error| format!("client {number}: {error}"))?;
    }
    Ok(())
}

async fn read_until(stream: &mut TcpStream, buffer: &mut [u8], end: &[u8]) -> Result<(), Error> {
    let mut filled = 0;
    let reading = async {
        while !buffer[..filled]
            .windows(end.len())
            .any(|window| window == end)
        {
            match stream.read(&mut buffer[filled..]).await? {
                0 => return Err("the connection was closed".into()),
                read => filled += read,
            }
        }
        Ok(())
    };
    tokio::time::timeout(Duration::from_secs(10), reading)
        .await
        .unwrap_or(Err("no answer within 10 s".into()))
}

/// Somebody buys; every follower hears of it.
async fn all_hear(
    stage: &Stage<'_>,
    target: &Target,
    sale: &str,
    streams: &mut [TcpStream],
) -> Result<(), Error> {
    let began = Instant::now();
    target.client.buy(sale, &stage.users(1)[0]).await?;
    let mut buffer = vec![0; 16 * 1024];
    for stream in streams.iter_mut() {
        read_until(stream, &mut buffer, b"\"remaining\":999").await?;
    }
    eprintln!(
        "all followers have heard of a purchase after {:?}",
        began.elapsed()
    );
    Ok(())
}
