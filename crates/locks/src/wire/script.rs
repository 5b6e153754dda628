//! What can be sent to a Redis: commands, and Lua scripts by their hash.

use redis::{Arg, Cmd, Script, ToRedisArgs, cmd};
use std::sync::OnceLock;

/// A command, or a call of a script.
pub trait Request: Sync {
    /// The command, and the script that its hash stands for, if it is a call.
    fn parts(&self) -> (&Cmd, Option<&'static LuaScript>);
}

impl Request for Cmd {
    fn parts(&self) -> (&Cmd, Option<&'static LuaScript>) {
        (self, None)
    }
}

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
    script: &'static LuaScript,
    evalsha: Cmd,
}

impl ScriptCall {
    #[must_use]
    pub fn arg(mut self, argument: impl ToRedisArgs) -> Self {
        self.evalsha.arg(argument);
        self
    }
}

impl Request for ScriptCall {
    fn parts(&self) -> (&Cmd, Option<&'static LuaScript>) {
        (&self.evalsha, Some(self.script))
    }
}

/// A command's name and its arguments.
pub(super) fn words(command: &Cmd) -> impl Iterator<Item = &[u8]> {
    command.args_iter().filter_map(|word| match word {
        Arg::Simple(bytes) => Some(bytes),
        _ => None,
    })
}

/// As typed, with a script's name instead of its hash.
pub(super) fn text(command: &Cmd, script: Option<&LuaScript>) -> String {
    let mut words: Vec<_> = words(command).map(String::from_utf8_lossy).collect();
    if let (Some(script), Some(hash)) = (script, words.get_mut(1)) {
        *hash = script.name.into();
    }
    words.join(" ")
}
