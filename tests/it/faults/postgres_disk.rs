//! The disk of Postgres is full, and then it is not.

use super::postgres::{ENOUGH, assert_nothing_lost};
use crate::support::{
    Servers,
    app::{Options, TestApp, eventually},
    load::Rush,
};
use serde_json::json;
use std::{
    fs,
    io::Write,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

/// A small disk in memory.
struct SmallDisk {
    path: PathBuf,
    janitor: Child,
}

impl SmallDisk {
    /// Needs root; `Err` says what `mount` said.
    fn mount(megabytes: u32) -> Result<Self, String> {
        let name = format!("fs-it-{}-disk", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).expect("a folder");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={megabytes}m"), "tmpfs"])
            .arg(&path)
            .output();
        let failed = match mounted {
            Ok(output) if output.status.success() => None,
            Ok(output) => Some(String::from_utf8_lossy(&output.stderr).into_owned()),
            Err(error) => Some(format!("mount: {error}")),
        };
        if let Some(why) = failed {
            fs::remove_dir(&path).ok();
            return Err(why);
        }
        // However this process ends: then the pipe closes. Lazily, because a server may still be
        // about to end.
        let script = "trap '' INT TERM HUP; cat >/dev/null; umount -l \"$1\" && rmdir \"$1\"";
        let janitor = Command::new("sh")
            .args(["-c", script, "janitor"])
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("sh runs");
        Ok(Self { path, janitor })
    }

    /// Fills it to the last byte.
    fn fill(&self) {
        let mut file = fs::File::create(self.path.join("big")).expect("a file");
        let mut block = vec![b'x'; 1 << 20];
        while !block.is_empty() {
            if file.write_all(&block).is_err() {
                block.truncate(block.len() / 2);
            }
        }
    }

    fn free(&self) {
        fs::remove_file(self.path.join("big")).expect("the file");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(self.janitor.stdin.take());
        self.janitor.wait().ok();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_stops_no_purchase_and_loses_none() {
    let disk = match SmallDisk::mount(192) {
        Ok(disk) => disk,
        Err(why) => {
            println!("NOT EXERCISED: a full disk of Postgres, because none can be mounted: {why}");
            let allowed = std::env::var_os("FLASH_SALE_ALLOW_UNEXERCISED").is_some();
            assert!(
                allowed,
                "set FLASH_SALE_ALLOW_UNEXERCISED=1 to go on without this test"
            );
            return;
        }
    };
    // A Redis that cannot write its log ends itself: it has another disk.
    let redis = Servers::shared().await.redis.url();
    let servers = Servers::own_in(disk.path.join("servers")).await;
    let app = TestApp::with_redis(&servers, redis, Options::default()).await;
    let sale = app.sale(50_000, json!({})).await;
    let rush = Rush::start(&[&app], &sale, 6, &[]);
    rush.until_accepted(ENOUGH).await;
    disk.fill();
    // Until Postgres cannot write any more: then what is accepted waits in the log.
    let pending = {
        let keys = flash_sale::redis::Keys::new(&app.prefix);
        (keys.state(sale.parse().expect("an id")), app.redis().await)
    };
    eventually("orders wait for the disk", async || {
        let waiting: i64 = redis::cmd("HGET")
            .arg(&pending.0)
            .arg("pending")
            .query_async(&mut pending.1.clone())
            .await
            .expect("pending");
        (waiting > 200).then_some(())
    })
    .await;
    rush.until_accepted(ENOUGH).await;
    disk.free();
    // It may have ended itself, for a lack of room for its log: its supervisor has started it again,
    // as a service manager does.
    servers.postgres.wait_ready().await.expect("it comes back");
    rush.until_accepted(ENOUGH).await;
    assert_nothing_lost(&app, &sale, rush).await;
    app.stop().await;
    drop(servers);
}
