//! `flash-sale lab export DIR`: the lab's pages for a host without a server, with recordings.

use super::recorder::{File, Race, Recorder};
use super::{OpenLab, PageFile, progress};
use crate::{Lab, Trial, lessons::LESSONS, terminal::complain};
use futures_util::future::try_join_all;
use indicatif::ProgressBar;
use std::path::{Path, PathBuf};
use std::{collections::BTreeMap, fs, io, sync::Arc};
use time::OffsetDateTime;

/// What a teacher can put anywhere.
const MOST_BYTES: usize = 5_000_000;
/// Lanes that a page runs at a time.
const LANES: usize = 4;

/// The page, where it is on the server, and its file; the first file of a folder comes last.
const PAGES: [(&str, &str, &str); 4] = [
    ("why.html", "/lab/why", "why.html"),
    ("locks.html", "/lab/locks", "locks.html"),
    ("ids.html", "/lab/ids", "ids.html"),
    ("lab.html", "/lab", "index.html"),
];
/// Files of `static/` that the lab's pages need, besides its folders.
const SHARED: [&str; 9] = [
    "favicon.svg",
    "js/api.js",
    "js/clock.js",
    "js/format.js",
    "js/lang.js",
    "js/result-picture.js",
    "js/sse.js",
    "js/strings.js",
    "js/ui.js",
];
const FOLDERS: [&str; 4] = ["css/", "js/lab/", "js/strings/", "vendor/archivo-narrow"];
/// Folders that only an export has side by side with its pages, and a file of it.
const TOP: [&str; 2] = ["data", "static"];
const MARK: &str = "static/js/lab/replay.js";

/// Lines of the pages that lead to where there is nothing.
const SERVER_ONLY: [&str; 4] =
    ["data-t=\"nav.sales\"", "href=\"/orders\"", "href=\"/admin\"", "id=\"wall\""];
/// The server's policy, as far as a page can say it, and what answers instead of the server.
const HEAD: &str = include_str!("../../templates/recording-head.html");

/// Whether the pages can be written there: only an earlier export is replaced.
pub fn check(folder: &Path) -> Result<(), String> {
    let cannot = |error: io::Error| format!("cannot write {}: {error}", folder.display());
    if !is_free(folder).map_err(cannot)? {
        return Err(format!("{} is not empty, and no export", folder.display()));
    }
    let Places { folder, part, old } = Places::of(folder);
    let there = folder.exists();
    fs::create_dir_all(&part).and_then(|()| fs::remove_dir_all(&part)).map_err(cannot)?;
    if !there {
        return Ok(());
    }
    // Of an export that was killed.
    let _ = fs::remove_dir_all(&old);
    // Where a disk is mounted, say, nothing can be put in its place.
    fs::rename(&folder, &old).and_then(|()| fs::rename(&old, &folder)).map_err(cannot)
}

fn is_free(folder: &Path) -> io::Result<bool> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        entries => entries?.collect::<io::Result<Vec<_>>>()?,
    };
    let is_known = |name: &str| {
        let page = name.strip_suffix(".html").unwrap_or_default();
        TOP.contains(&name)
            || PAGES.iter().any(|(_, _, file)| *file == name)
            || LESSONS.iter().any(|lesson| lesson.id == page)
    };
    let is_export = folder.join(MARK).is_file();
    let is_ours = |entry: &fs::DirEntry| entry.file_name().to_str().is_some_and(is_known);
    Ok(entries.is_empty() || is_export && entries.iter().all(is_ours))
}

/// Where the pages are to be, where they are written first, and what was there before.
struct Places {
    folder: PathBuf,
    part: PathBuf,
    old: PathBuf,
}

impl Places {
    fn of(folder: &Path) -> Self {
        let folder = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let beside = |what: &str| folder.with_file_name(format!(".{name}.{what}"));
        let (part, old) = (beside("export"), beside("before-export"));
        Self { folder, part, old }
    }

    fn fill(&self, files: &[File]) -> io::Result<()> {
        for (name, content) in files {
            let path = self.part.join(name);
            fs::create_dir_all(path.parent().unwrap_or(&self.part))?;
            fs::write(&path, content)?;
        }
        if !self.folder.exists() {
            return fs::rename(&self.part, &self.folder);
        }
        fs::rename(&self.folder, &self.old)?;
        fs::rename(&self.part, &self.folder).inspect_err(|_| {
            let _ = fs::rename(&self.old, &self.folder);
        })
    }
}

/// All pages in the folder, or none; says what has been written.
pub async fn run(folder: &Path, open: OpenLab) -> Result<String, String> {
    let progress = progress(0);
    let OpenLab { lab, stores, pages } = open;
    let lab = Arc::new(lab);
    let recorded = record(lab.clone(), &pages(), &progress).await;
    lab.close().await;
    stores.await;
    progress.finish_and_clear();
    let files = recorded.map_err(|error| format!("nothing is exported: {error}"))?;
    let bytes = write(folder, &files)?;
    let (folder, count, kilobytes) = (folder.display(), files.len(), bytes.div_ceil(1_000));
    Ok(format!(
        "{folder}: {count} files, {kilobytes} KB; they work from any folder of any host\n\
         to look at them: python3 -m http.server --directory {folder} 8000\n"
    ))
}

async fn record(
    lab: Arc<Lab>,
    pages: &[PageFile],
    progress: &ProgressBar,
) -> Result<Vec<File>, String> {
    let heats = heats(pages)?;
    let plays = LESSONS.iter().map(|lesson| format!("lessons/{}/play", lesson.id));
    let plays = plays.map(|path| ("POST", path));
    let lists = ["strategies", "lessons", "locks", "ids"];
    let lists = lists.map(|path| ("GET", path.to_owned()));
    let answers: Vec<_> = lists.into_iter().chain(plays).collect();
    let (lessons, lanes) =
        (LESSONS.len(), heats.iter().map(|(_, lanes)| lanes.len()).sum::<usize>());
    complain!("recording {lessons} lessons and {lanes} lanes of races, in about two minutes");
    progress.set_length((answers.len() + heats.len()) as u64);

    let recorder = Recorder::new(lab);
    let mut files = Vec::new();
    for (method, path) in answers {
        progress.set_message(path.clone());
        files.extend(recorder.answers(method, &path).await?);
        progress.inc(1);
    }
    for (page, lanes) in heats {
        let names: Vec<_> = lanes.iter().map(|lane| &*lane.wanted.strategy).collect();
        progress.set_message(names.join(", "));
        let told = try_join_all(lanes.iter().map(|lane| recorder.lane(&page, lane))).await?;
        files.extend(told.into_iter().flatten());
        progress.inc(1);
    }
    files.extend(site(pages)?);
    Ok(files)
}

/// Lanes that run at the same time, with the page that shows them.
fn heats(pages: &[PageFile]) -> Result<Vec<(String, Vec<Trial>)>, String> {
    let source = text_of(pages, "js/lab/races.js")?;
    let (_, json) = source.split_once("export default ").unwrap_or_default();
    let races = serde_json::from_str(json.trim_end().trim_end_matches(';'));
    let races: BTreeMap<String, BTreeMap<String, Race>> =
        races.map_err(|error| format!("races.js: {error}"))?;
    let mut heats = Vec::new();
    for (page, races) in races {
        for race in races.into_values() {
            let lanes = race.lanes()?;
            let heat = lanes.chunks(if race.together { LANES } else { 1 });
            heats.extend(heat.map(|lanes| (page.clone(), lanes.to_vec())));
        }
    }
    Ok(heats)
}

// ---- the pages --------------------------------------------------------------------------------

fn text_of(pages: &[PageFile], name: &str) -> Result<String, String> {
    let found = pages.iter().find(|(known, _)| known == name);
    let (_, bytes) = found.ok_or(format!("this program has no {name}"))?;
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

/// The pages and what they are made of; the one to begin with is the last.
fn site(pages: &[PageFile]) -> Result<Vec<File>, String> {
    let is_needed = |name: &str| {
        SHARED.contains(&name) || FOLDERS.iter().any(|folder| name.starts_with(folder))
    };
    let parts = pages.iter().filter(|(name, _)| is_needed(name));
    let parts = parts.map(|(name, bytes)| (format!("static/{name}"), bytes.to_vec()));
    let mut files: Vec<File> = parts.collect();
    let lesson = page(&text_of(pages, "lesson.html")?);
    let lessons =
        LESSONS.iter().map(|one| (format!("{}.html", one.id), lesson.clone().into_bytes()));
    files.extend(lessons);
    for (source, _, name) in PAGES {
        files.push((name.to_owned(), page(&text_of(pages, source)?).into_bytes()));
    }
    Ok(files)
}

/// A page of the server with links that stay in its folder.
fn page(html: &str) -> String {
    let mut page = String::new();
    for line in html.lines().filter(|line| !SERVER_ONLY.iter().any(|part| line.contains(part))) {
        if line.contains("/js/lang.js\"") {
            page += HEAD;
        }
        page += &format!("{line}\n");
        if line.contains("<main ") {
            page += &note();
        }
    }
    for id in LESSONS.iter().map(|one| one.id) {
        page = page.replace(&format!("\"/lab/lessons/{id}\""), &format!("\"{id}.html\""));
    }
    for (_, path, name) in PAGES {
        page = page.replace(&format!("\"{path}\""), &format!("\"{name}\""));
    }
    page.replace("\"/static/", "\"static/")
        .replace("\"/lab?", "\"index.html?")
        .replace("href=\"/\"", "href=\"index.html\"")
}

/// In both languages: the style sheet shows that of the page.
fn note() -> String {
    let (day, version) = (OffsetDateTime::now_utc().date(), env!("CARGO_PKG_VERSION"));
    let note = include_str!("../../templates/recording-note.html");
    note.replace("{day}", &day.to_string()).replace("{version}", version)
}

/// All files, or what was there before; how many bytes they are.
fn write(folder: &Path, files: &[File]) -> Result<usize, String> {
    let bytes = files.iter().map(|(_, content)| content.len()).sum();
    if bytes > MOST_BYTES {
        return Err(format!("the pages take {bytes} bytes, at most {MOST_BYTES}"));
    }
    check(folder)?;
    let places = Places::of(folder);
    let filled = places.fill(files);
    let _ = fs::remove_dir_all(&places.part);
    if places.folder.exists() {
        let _ = fs::remove_dir_all(&places.old);
    }
    filled.map_err(|error| format!("cannot write {}: {error}", folder.display()))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(name: &'static str, text: &'static str) -> PageFile {
        (name.into(), text.as_bytes().into())
    }

    #[test]
    fn every_race_of_the_pages_can_be_recorded_and_told_from_the_others() {
        let text = include_str!("../../../../static/js/lab/races.js");
        let heats = heats(&[source("js/lab/races.js", text)]).expect("races");
        let lanes = heats.iter().flat_map(|(page, lanes)| {
            lanes.iter().map(move |Trial { wanted, .. }| Recorder::arena_of(page, wanted))
        });
        let lanes: Vec<_> = lanes.collect();
        let names: std::collections::HashSet<_> = lanes.iter().collect();
        assert!(lanes.len() > 10 && names.len() == lanes.len(), "{lanes:?}");
    }

    #[test]
    fn an_export_replaces_an_earlier_one_and_nothing_else() {
        let home = std::env::temp_dir().join(format!("flash-sale-export-{}", std::process::id()));
        let site = home.join("site");
        let names = |folder: &Path| {
            let entries = fs::read_dir(folder).expect("a folder");
            entries.map(|entry| entry.expect("an entry").file_name()).collect::<Vec<_>>()
        };
        let file = |name: &str, text: &str| (name.to_owned(), text.as_bytes().to_vec());
        let index = || fs::read_to_string(site.join("index.html")).expect("a page");
        let (mark, first) = (file(MARK, ""), file("index.html", "first"));
        write(&site, &[mark.clone(), file("why.html", ""), first.clone()]).expect("written");
        write(&site, &[mark.clone(), file("index.html", "second")]).expect("written again");
        assert!(index() == "second" && !site.join("why.html").exists());
        // Half way through, a file is in the place of a folder.
        let half = [mark.clone(), first, file("data", ""), file("data/a", "")];
        write(&site, &half).expect_err("not whole");
        assert_eq!((index(), names(&home)), ("second".to_owned(), vec!["site".into()]));
        fs::write(site.join("mine"), "precious").expect("a file");
        let refused = write(&site, &[mark]).expect_err("somebody's own file");
        assert!(refused.ends_with("is not empty, and no export"), "{refused}");
        assert_eq!(names(&home), ["site"]);
        fs::remove_dir_all(home).expect("removed");
    }

    #[test]
    fn a_page_leads_nowhere_but_to_its_neighbours() {
        for text in [
            include_str!("../../../../static/why.html"),
            include_str!("../../../../static/lab.html"),
        ] {
            let page = page(text);
            assert!(page.contains(".html\"") && page.contains("\"static/js/lab/"), "{page}");
            assert!(!page.contains("=\"/"), "{page}");
        }
    }
}
