//! `health`: whether a running server is ready.

use lab::terminal::complain;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::process::ExitCode;
use std::time::Duration;

/// A plain GET by hand: a container image needs no curl, and one request no HTTP client.
pub fn health(url: &str) -> ExitCode {
    match status_of(url) {
        Ok(200) => return ExitCode::SUCCESS,
        Ok(status) => complain!("{url} answered {status}"),
        Err(error) => complain!("{url}: {error}"),
    }
    ExitCode::FAILURE
}

fn status_of(url: &str) -> io::Result<u16> {
    let malformed = || {
        let expected = "expected http://host:port/path";
        io::Error::new(io::ErrorKind::InvalidInput, expected)
    };
    let rest = url.strip_prefix("http://").ok_or_else(malformed)?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let address = host.to_socket_addrs()?.next().ok_or_else(malformed)?;
    let limit = Duration::from_secs(3);
    let mut stream = TcpStream::connect_timeout(&address, limit)?;
    stream.set_read_timeout(Some(limit))?;
    let request = format!("GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut head = [0; 12]; // "HTTP/1.1 200"
    stream.read_exact(&mut head)?;
    let status = std::str::from_utf8(&head[9..]).ok();
    let status = status.and_then(|status| status.parse().ok());
    status.ok_or_else(malformed)
}
