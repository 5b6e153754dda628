//! `flash-sale lab new NAME`: the file of a strategy of one's own, and its place in the registry.

use super::{CommandError, refused};
use crate::strategies;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const TEMPLATE: &str = include_str!("../strategies/own/example.rs");
const REGISTRY: &str = include_str!("../strategies/own.rs");
const FOLDER: &str = "crates/lab/src/strategies/own";

/// Says what to do next.
pub fn run(name: &str) -> Result<String, CommandError> {
    let here = std::env::current_dir().map_err(refused)?;
    let file = create(name, &here).map_err(refused)?;
    let next = format!("cargo run --no-default-features -- lab grade {name}");
    Ok(format!("{} is written. It oversells.\n{next}\n", file.display()))
}

/// Writes the file, in the checkout that this folder belongs to.
fn create(name: &str, here: &Path) -> Result<PathBuf, String> {
    if strategies::find(name).is_some() {
        return Err(format!("there is a strategy called {name} already"));
    }
    let mut above = here.ancestors().map(|folder| folder.join(FOLDER));
    let folder = above.find(|folder| folder.is_dir());
    let folder = folder.ok_or_else(|| "this is no checkout of flash-sale".to_owned())?;
    write(name, &folder).map_err(|error| format!("cannot write in {}: {error}", folder.display()))
}

/// The name of a strategy, which is one of a module, too. Two words or more: no keyword has a
/// hyphen.
pub fn name(text: &str) -> Result<String, String> {
    let is_word = |word: &str| {
        word.starts_with(|c: char| c.is_ascii_lowercase())
            && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
    };
    if text.contains('-') && text.len() <= 40 && text.split('-').all(is_word) {
        Ok(text.to_owned())
    } else {
        Err("must be two or more small words, like my-idea".to_owned())
    }
}

fn write(name: &str, folder: &Path) -> io::Result<PathBuf> {
    let file = folder.join(name.replace('-', "_") + ".rs");
    let code = TEMPLATE.replace("`example`", &format!("`{name}`"));
    let code = code.replace("\"example\"", &format!("\"{name}\""));
    fs::File::create_new(&file)?.write_all(code.as_bytes())?;
    let mut modules = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().into_string().unwrap_or_default();
        modules.extend(name.strip_suffix(".rs").map(str::to_owned));
    }
    modules.sort();
    fs::write(folder.with_extension("rs"), registry(&modules))?;
    Ok(file)
}

/// The registry of these modules.
fn registry(modules: &[String]) -> String {
    let head = REGISTRY.lines().take_while(|line| line.starts_with("//!"));
    let head: String = head.map(|line| format!("{line}\n")).collect();
    let declared: String = modules.iter().map(|module| format!("mod {module};\n")).collect();
    format!("{head}\n{declared}\nstrategies![\"own/\"; {}];\n", modules.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_strategy_has_its_file_and_its_place() {
        let root = std::env::temp_dir().join(format!("fs-new-{}", uuid::Uuid::new_v4()));
        let folder = root.join(FOLDER);
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join("example.rs"), TEMPLATE).expect("the template");
        let file = create("my-idea", &folder).expect("a file");
        let code = fs::read_to_string(&file).expect("its code");
        assert_eq!(code.replace("my-idea", "example"), TEMPLATE);
        assert!(code.contains("id: \"my-idea\""), "{code}");
        let registered = fs::read_to_string(folder.with_extension("rs")).expect("the registry");
        assert!(registered.ends_with("strategies![\"own/\"; example, my_idea];\n"), "{registered}");
        assert!(registered.contains("mod example;\nmod my_idea;\n"), "{registered}");
        // An existing file stays as it is.
        assert!(create("my-idea", &root).is_err_and(|why| why.contains("exists")));
        assert!(create("row-lock", &root).is_err_and(|why| why.contains("already")));
        assert!(create("my-other-idea", Path::new("/")).is_err());
        fs::remove_dir_all(&root).expect("to tidy up");
    }

    /// The registry in the checkout is as `new` writes it: it compiles, and so will the next.
    #[test]
    fn the_registry_is_written_as_it_stands() {
        let modules = REGISTRY.lines().filter_map(|line| line.strip_prefix("mod "));
        let modules: Vec<_> = modules.map(|name| name.trim_end_matches(';').to_owned()).collect();
        assert_eq!(registry(&modules), REGISTRY);
    }

    #[test]
    fn a_name_is_one_of_a_module_too() {
        assert!(name("my-2nd-idea").is_err() && name("my-idea-2").is_err());
        for sound in ["my-idea", "my-idea-v2"] {
            assert_eq!(name(sound).as_deref(), Ok(sound));
        }
        for bad in ["match", "My-idea", "my_idea", "my-", "-", "my--idea", "../my-idea", ""] {
            assert!(name(bad).is_err(), "{bad}");
        }
    }
}
