//! Lua scripts, called by their hash.

use redis::{Arg, Cmd, Script, ToRedisArgs, cmd};
use std::sync::OnceLock;

/// A Lua script: a file's name and its text.
pub struct LuaScript {
    pub name: &'static str,
    pub source: &'static str,
    hash: OnceLock<String>,
}

impl LuaScript {
    pub const fn new(name: &'static str, source: &'static str) -> Self {
        Self { name, source, hash: OnceLock::new() }
    }

    /// A call with these keys; arguments follow with [`ScriptCall::arg`].
    pub fn on(&'static self, keys: &[&str]) -> ScriptCall {
        let hash = self.hash.get_or_init(|| Script::new(self.source).get_hash().to_owned());
        let mut evalsha = cmd("EVALSHA");
        evalsha.arg(hash).arg(keys.len()).arg(keys);
        ScriptCall { script: self, evalsha }
    }
}

/// A script with its keys and arguments.
pub struct ScriptCall {
    pub(super) script: &'static LuaScript,
    pub(super) evalsha: Cmd,
}

impl ScriptCall {
    #[must_use]
    pub fn arg(mut self, argument: impl ToRedisArgs) -> Self {
        self.evalsha.arg(argument);
        self
    }

    /// With the script's source, for a Redis that does not know it.
    pub(super) fn eval(&self) -> Cmd {
        let mut eval = cmd("EVAL");
        eval.arg(self.script.source);
        for argument in self.evalsha.args_iter().skip(2) {
            if let Arg::Simple(bytes) = argument {
                eval.arg(bytes);
            }
        }
        eval
    }

    pub(super) fn text(&self) -> String {
        let mut words = words_of(&self.evalsha);
        if let Some(hash) = words.get_mut(1) {
            self.script.name.clone_into(hash);
        }
        words.join(" ")
    }
}

/// A command as typed, with long words cut.
pub(super) fn words_of(command: &Cmd) -> Vec<String> {
    const LONGEST: usize = 80;
    let cut = |bytes: &[u8]| {
        let word = String::from_utf8_lossy(bytes);
        match word.char_indices().nth(LONGEST) {
            Some((end, _)) => format!("{}…", &word[..end]),
            None => word.into_owned(),
        }
    };
    let words = command.args_iter().map(|argument| match argument {
        Arg::Simple(bytes) => cut(bytes),
        _ => String::new(),
    });
    words.collect()
}
