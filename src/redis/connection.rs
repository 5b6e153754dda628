//! A connection that goes where the key is.
//!
//! To one server it is that server's connection and nothing more. To a cluster it sends every command to
//! the owner of its key's slot, each part of a pipeline to its own, and follows what they answer:
//!
//! | answer | then |
//! |---|---|
//! | MOVED | the map is mended, and the command asked again at the new owner |
//! | ASK | the same command behind ASKING, at the node that the slot is moving to |
//! | TRYAGAIN, CLUSTERDOWN, LOADING, MASTERDOWN | an error: whoever asks decides whether to wait ([`is_passing`]) |
//!
//! A redirected command was not run where it was refused, so following it cannot run it twice. Commands of
//! a pipeline for different servers run at the same time, in no order between them.

use super::{
    Topology,
    node::{Node, pool_error},
    slots::slot_of_command,
};
use futures_util::future::join_all;
use redis::{
    Cmd, ErrorKind, Pipeline, RedisError, RedisFuture, ServerErrorKind, Value,
    aio::{ConnectionLike, MultiplexedConnection},
};
use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
};

/// How often a command is redirected before that is an error: a slot does not move faster than that.
const REDIRECTIONS: usize = 5;

/// The code of the error that stands for a server of a cluster that could not be reached, beside the
/// answers of others.
pub const UNREACHABLE: &str = "UNREACHABLE";

/// Lent for a while. Used as `&mut *connection`, like a connection of the pool.
pub struct Connection(Way);

/// The way that commands take.
pub enum Way {
    Pooled(deadpool_redis::Connection),
    Hot(MultiplexedConnection),
    Routed(Routed),
}

impl Connection {
    pub(super) fn pooled(connection: deadpool_redis::Connection) -> Self {
        Self(Way::Pooled(connection))
    }

    pub(super) fn hot(connection: MultiplexedConnection) -> Self {
        Self(Way::Hot(connection))
    }

    /// Another one of the same kind, for a command beside those of this one.
    pub fn another(&self) -> Self {
        match &self.0 {
            // A clone that outlives the loan: it is multiplexed, and nothing is left on it.
            Way::Pooled(connection) => Self::hot(MultiplexedConnection::clone(connection)),
            Way::Hot(connection) => Self::hot(connection.clone()),
            Way::Routed(routed) => Self::routed(routed.topology.clone(), routed.lines),
        }
    }

    pub(super) fn routed(topology: Arc<Topology>, lines: Lines) -> Self {
        Self(Way::Routed(Routed {
            topology,
            lines,
            lent: Vec::new(),
        }))
    }
}

impl Deref for Connection {
    type Target = Way;

    fn deref(&self) -> &Way {
        &self.0
    }
}

impl DerefMut for Connection {
    fn deref_mut(&mut self) -> &mut Way {
        &mut self.0
    }
}

impl ConnectionLike for Way {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::Pooled(connection) => connection.req_packed_command(cmd),
            Self::Hot(connection) => connection.req_packed_command(cmd),
            Self::Routed(routed) => Box::pin(routed.command(cmd)),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::Pooled(connection) => connection.req_packed_commands(pipeline, offset, count),
            Self::Hot(connection) => connection.req_packed_commands(pipeline, offset, count),
            Self::Routed(routed) => Box::pin(routed.pipeline(pipeline, offset, count)),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::Pooled(connection) => connection.get_db(),
            Self::Hot(connection) => connection.get_db(),
            Self::Routed(_) => 0,
        }
    }
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        self.0.req_packed_command(cmd)
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.0.req_packed_commands(pipeline, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.0.get_db()
    }
}

/// Which connections commands to a cluster take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lines {
    /// Of the nodes' pools.
    Pooled,
    /// The nodes' hot ones: only to processes that are approved.
    Hot,
    /// To any process. Nobody may sell over them: for a bug that is planted.
    Unchecked,
}

/// See the head of this file.
pub struct Routed {
    topology: Arc<Topology>,
    lines: Lines,
    /// What was borrowed so far, until this ends: a node's pool is asked once.
    lent: Vec<(Arc<Node>, deadpool_redis::Connection)>,
}

impl Routed {
    async fn command(&mut self, command: &Cmd) -> Result<Value, RedisError> {
        let mut node = self.topology.find(slot_of_command(command)).await?;
        let (mut asking, mut redirections) = (false, 0);
        loop {
            let refused = match self.send(&node, command, asking).await {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            redirections += 1;
            let to = match refused.redirect_node() {
                Some((to, slot)) if redirections <= REDIRECTIONS => {
                    asking = refused.kind() == ErrorKind::Server(ServerErrorKind::Ask);
                    if asking {
                        self.topology.asked_at(to, &node)?
                    } else {
                        self.topology.moved(slot, to, &node)?
                    }
                }
                _ => return Err(refused),
            };
            if self.lines == Lines::Hot
                && let Err(error) = to.hot().await
            {
                // Not a place to sell from (yet). The next attempt finds the gate there shut, or open.
                tracing::debug!(%error, server = to.name(), "could not follow a redirection");
                return Err(refused);
            }
            node = to;
        }
    }

    async fn send(
        &mut self,
        node: &Arc<Node>,
        command: &Cmd,
        asking: bool,
    ) -> Result<Value, RedisError> {
        let mut hot;
        let connection: &mut MultiplexedConnection = match self.lines {
            Lines::Pooled => self.borrow(node).await?,
            Lines::Hot => {
                hot = node.hot().await.map_err(RedisError::from)?;
                &mut hot
            }
            Lines::Unchecked => {
                hot = node.hot_unchecked().await.map_err(RedisError::from)?;
                &mut hot
            }
        };
        if !asking {
            // A refusal is a value until somebody looks at it.
            let sent = connection.send_packed_command(command).await;
            let sent = sent.and_then(Value::extract_error);
            if let Err(error) = &sent {
                node.note(error);
            }
            if sent.as_ref().is_err_and(RedisError::is_unrecoverable_error) {
                self.lent.retain(|(lender, _)| !Arc::ptr_eq(lender, node));
                if self.lines == Lines::Hot {
                    node.drop_hot();
                }
            }
            return sent;
        }
        // Both in one write, so that nobody else's command stands between them on a shared connection.
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.cmd("ASKING").add_command(command.clone());
        let mut answers = connection.send_packed_commands(&pipeline, 0, 2).await?;
        let answer = answers.pop().unwrap_or(Value::Nil);
        answer.extract_error()
    }

    async fn borrow(&mut self, node: &Arc<Node>) -> Result<&mut MultiplexedConnection, RedisError> {
        let place = match self
            .lent
            .iter()
            .position(|(lender, _)| Arc::ptr_eq(lender, node))
        {
            Some(place) => place,
            None => {
                self.lent
                    .push((node.clone(), node.pooled_unless_silent().await?));
                self.lent.len() - 1
            }
        };
        Ok(&mut self.lent[place].1)
    }

    /// Like [`ConnectionLike::req_packed_commands`]. Where some servers answer and others do not, each command
    /// of the others has an error of the code [`UNREACHABLE`].
    async fn pipeline(
        &mut self,
        pipeline: &Pipeline,
        offset: usize,
        count: usize,
    ) -> Result<Vec<Value>, RedisError> {
        let commands: Vec<&Cmd> = pipeline.cmd_iter().collect();
        let slots: Vec<Option<u16>> = commands
            .iter()
            .map(|command| slot_of_command(command))
            .collect();
        let first = slots.iter().copied().flatten().next();
        if pipeline.is_transaction() {
            // All keys of one have one tag.
            let node = self.topology.find(first).await?;
            return self
                .borrow(&node)
                .await?
                .send_packed_commands(pipeline, offset, count)
                .await;
        }
        let mut parts: Vec<(Arc<Node>, Vec<usize>)> = Vec::new();
        let mut values = vec![Value::Nil; commands.len()];
        for (number, slot) in slots.iter().enumerate() {
            // What has no key goes with the first that has one.
            match self.topology.find(slot.or(first)).await {
                Ok(node) => match parts
                    .iter_mut()
                    .find(|(known, _)| Arc::ptr_eq(known, &node))
                {
                    Some((_, numbers)) => numbers.push(number),
                    None => parts.push((node, vec![number])),
                },
                Err(error) => values[number] = unreachable_value(&error)?,
            }
        }
        let lines = self.lines;
        let asked = parts.iter().map(|(node, numbers)| {
            let mut part = Pipeline::with_capacity(numbers.len());
            for number in numbers {
                part.add_command(commands[*number].clone());
            }
            ask(node, lines, part)
        });
        let asked: Vec<Result<Vec<Value>, RedisError>> = join_all(asked).await;
        let nobody_answered = asked.iter().all(Result::is_err);
        for ((_, numbers), answered) in parts.iter().zip(asked) {
            match answered {
                Ok(answers) => {
                    for (number, answer) in numbers.iter().zip(answers) {
                        values[*number] = answer;
                    }
                }
                Err(error) if nobody_answered => return Err(error),
                Err(error) => {
                    for number in numbers {
                        values[*number] = unreachable_value(&error)?;
                    }
                }
            }
        }
        for (command, value) in commands.iter().zip(&mut values) {
            if !is_redirection(value) {
                continue;
            }
            match self.command(command).await {
                Ok(answer) => *value = answer,
                Err(error) => tracing::debug!(%error, "could not follow a redirection"),
            }
        }
        Ok(values)
    }
}

/// Sends a pipeline whose commands are all for this node.
async fn ask(node: &Node, lines: Lines, pipeline: Pipeline) -> Result<Vec<Value>, RedisError> {
    let mut connection = match lines {
        Lines::Pooled => Way::Pooled(node.pooled_unless_silent().await?),
        Lines::Hot => Way::Hot(node.hot().await.map_err(RedisError::from)?),
        Lines::Unchecked => Way::Hot(node.hot_unchecked().await.map_err(RedisError::from)?),
    };
    let count = pipeline.cmd_iter().count();
    let answered = connection.req_packed_commands(&pipeline, 0, count).await;
    if let Err(error) = &answered {
        node.note(error);
        if lines == Lines::Hot && error.is_unrecoverable_error() {
            node.drop_hot();
        }
    }
    answered
}

fn is_redirection(value: &Value) -> bool {
    let Value::ServerError(error) = value else {
        return false;
    };
    matches!(
        error.kind(),
        Some(ServerErrorKind::Moved | ServerErrorKind::Ask)
    )
}

/// An answer that says that there is none.
fn unreachable_value(error: &RedisError) -> Result<Value, RedisError> {
    let words = error.to_string().replace(['\r', '\n'], " ");
    redis::parse_redis_value(format!("-{UNREACHABLE} {words}\r\n").as_bytes())
}

/// Whether a command was refused for a reason that goes by itself, and was certainly not run: its slot is on
/// its way to another node, or somebody is still being elected or loading.
pub fn is_passing(error: &RedisError) -> bool {
    let ErrorKind::Server(kind) = error.kind() else {
        return false;
    };
    matches!(
        kind,
        ServerErrorKind::Moved
            | ServerErrorKind::Ask
            | ServerErrorKind::TryAgain
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::BusyLoading
            | ServerErrorKind::MasterDown
    )
}

impl From<super::HotError> for RedisError {
    fn from(error: super::HotError) -> Self {
        match error {
            super::HotError::Redis(error) => error,
            super::HotError::Pool(error) => pool_error(error),
            error @ super::HotError::NotApproved { .. } => {
                Self::from((ErrorKind::Io, "the gate is shut", error.to_string()))
            }
        }
    }
}
