// SPDX-License-Identifier: Apache-2.0
//! Connections to one server. Appends and pictures have their own, because `WAIT` and pictures delay all commands after them.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, ErrorKind, Pipeline, RedisConnectionInfo, RedisError, ServerErrorKind, Value};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::image_connection::ImageConnection;
use super::options::{Address, TlsFiles, ValkeyOptions};
use super::script::{self, Call};
use super::server::Server;
use crate::session::ledger::LedgerError;
use crate::tls_client;

/// A byte stream to a server.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// The connections to a primary.
pub(super) struct Connected {
    /// For everything but appends and the bytes of pictures.
    pub commands: Connection,
    /// For appends and `WAIT`.
    pub appends: Connection,
    /// For the bytes of pictures.
    pub images: Arc<ImageConnection>,
    pub server: Server,
    pub address: Address,
    /// The time limit of a command.
    timeout: Duration,
    trouble: mpsc::UnboundedSender<Trouble>,
    // ends the connections when it is dropped
    _drivers: JoinSet<()>,
}

/// A problem of the connection that an operation has observed.
#[derive(Debug)]
pub(super) enum Trouble {
    /// A command had no answer within the time limit.
    Slow,
    /// Another node of the cluster has a slot. With its address, if the server told it.
    Moved(Option<Address>),
    /// The connection is lost, or the server is not the primary.
    Lost(Arc<str>),
}

/// One connection. Clones share it.
#[derive(Clone)]
pub(super) struct Connection(MultiplexedConnection);

impl Connected {
    /// Connects to the primary at `address`, and checks that it can hold a ledger.
    pub(super) async fn connect(
        address: &Address,
        options: &ValkeyOptions,
        in_cluster: bool,
    ) -> Result<(Self, mpsc::UnboundedReceiver<Trouble>), LedgerError> {
        let (trouble, reports) = mpsc::unbounded_channel();
        let mut drivers = JoinSet::new();
        let mut open = async || {
            let trouble = trouble.clone();
            // without a receiver, the connections are closed already
            let closed = move || drop(trouble.send(Trouble::Lost("the server closed the connection".into())));
            Connection::open(address, options, Credentials::OfServer, &mut drivers, closed).await
        };
        let (mut commands, mut appends) = (open().await?, open().await?);
        let server = Server::inspect(&mut commands).await.map_err(|error| at(address, &error))?;
        server.check(in_cluster)?;
        // without it, the first append of each connection would wait twice. A user who may not load scripts may still run them
        let _ = appends.send(&script::APPEND.load()).await;
        let connected = Self {
            commands,
            appends,
            images: Arc::new(ImageConnection::new(address, &trouble)),
            server,
            address: address.clone(),
            // it ends before that of the operation, which would otherwise leave without a report
            timeout: options.timeout / 8 * 7,
            trouble,
            _drivers: drivers,
        };
        Ok((connected, reports))
    }

    /// Runs a script on the connection for commands.
    pub(super) async fn run(&self, call: &Call) -> Result<Value, LedgerError> {
        let mut connection = self.commands.clone();
        self.limit(connection.run(call)).await.map_err(|failure| self.judge(&failure))
    }

    /// Whether the server answers.
    pub(super) async fn ping(&self) -> Result<(), LedgerError> {
        let mut connection = self.commands.clone();
        self.limit(connection.send(&redis::cmd("PING"))).await.map(drop).map_err(|failure| self.error(&failure))
    }

    /// The result of `operation`, within the time limit.
    pub(super) async fn limit<T>(&self, operation: impl Future<Output = Result<T, RedisError>>) -> Result<T, Failure> {
        match timeout(self.timeout, operation).await {
            Ok(result) => result.map_err(Failure::Error),
            Err(_) => Err(Failure::Timeout),
        }
    }

    /// The error of a failed command. Reports a problem of the connection.
    pub(super) fn judge(&self, failure: &Failure) -> LedgerError {
        let error = self.error(failure);
        match (&error, failure) {
            (LedgerError::Timeout(_), _) => self.report(Trouble::Slow),
            (LedgerError::Unavailable(reason), _) if is_moved(reason) => {
                self.report(Trouble::Moved(Address::from_moved(reason, &self.address.host)))
            }
            (LedgerError::Unavailable(reason), Failure::Error(cause)) if !is_passing(cause) => {
                self.report(Trouble::Lost(Arc::clone(reason)));
            }
            _ => {}
        }
        error
    }

    pub(super) fn report(&self, trouble: Trouble) {
        // without a receiver, the connection is replaced already
        let _ = self.trouble.send(trouble);
    }

    fn error(&self, failure: &Failure) -> LedgerError {
        match failure {
            Failure::Timeout => LedgerError::Timeout(self.timeout),
            Failure::Error(error) => ledger_error(error),
        }
    }
}

impl fmt::Debug for Connected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connected").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Why a command has no answer.
#[derive(Debug)]
pub(super) enum Failure {
    Timeout,
    Error(RedisError),
}

/// The credentials of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Credentials {
    OfServer,
    /// A Sentinel that asks for none.
    None,
}

impl Connection {
    /// Opens a connection. A task of `drivers` drives it, and calls `closed` when the connection is closed.
    pub(super) async fn open(
        address: &Address,
        options: &ValkeyOptions,
        credentials: Credentials,
        drivers: &mut JoinSet<()>,
        closed: impl FnOnce() + Send + 'static,
    ) -> Result<Self, LedgerError> {
        let unavailable = |error: &dyn fmt::Display| LedgerError::Unavailable(format!("{address}: {error}").into());
        let tcp = TcpStream::connect((&*address.host, address.port)).await.map_err(|error| unavailable(&error))?;
        tcp.set_nodelay(true).map_err(|error| unavailable(&error))?;
        let stream: Box<dyn Stream> =
            if options.url.is_tls { tls_handshake(address, &options.tls, tcp).await? } else { Box::new(tcp) };
        let info = match credentials {
            Credentials::OfServer => login(options)?,
            Credentials::None => RedisConnectionInfo::default().set_skip_set_lib_name(),
        };
        let (sender, opened) = oneshot::channel();
        // the driver borrows the credentials, so the task owns both
        drivers.spawn(async move {
            // time limits are those of the callers
            let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
            match MultiplexedConnection::new_with_config(&info, stream, config).await {
                Ok((connection, driver)) => {
                    // a caller that has left drops the task too
                    let _ = sender.send(Ok(connection));
                    driver.await;
                    closed();
                }
                Err(error) => drop(sender.send(Err(error))),
            }
        });
        match opened.await {
            Ok(opened) => opened.map(Self).map_err(|error| at(address, &error)),
            Err(_) => Err(unavailable(&"the connection is closed")),
        }
    }

    /// The answer to a script, which the server need not know.
    pub(super) async fn run(&mut self, call: &Call) -> Result<Value, RedisError> {
        match self.send(&call.by_hash()).await {
            Err(error) if is_missing_script(&error) => self.send(&call.by_text()).await,
            result => result,
        }
    }

    pub(super) async fn send(&mut self, command: &Cmd) -> Result<Value, RedisError> {
        self.0.send_packed_command(command).await.and_then(Value::extract_error)
    }

    /// The answers to all commands; some may be errors of the server.
    pub(super) async fn send_all(&mut self, commands: &Pipeline) -> Result<Vec<Value>, RedisError> {
        self.0.send_packed_commands(commands, 0, commands.len()).await
    }
}

/// Performs the handshake, and verifies that the certificate is for the host of `address`.
async fn tls_handshake(address: &Address, files: &TlsFiles, tcp: TcpStream) -> Result<Box<dyn Stream>, LedgerError> {
    let ca = files.ca.as_deref().ok_or_else(|| {
        LedgerError::Refused(
            "TLS needs a file with the CAs of the servers. For a public CA, use the bundle of the system, such as \
             /etc/ssl/certs/ca-certificates.crt"
                .into(),
        )
    })?;
    let config = tls_client::config(ca, files.client.as_ref()).map_err(|text| LedgerError::Refused(text.into()))?;
    let name = ServerName::try_from(address.host.to_string())
        .map_err(|_| LedgerError::Refused(format!("{address}: the host is no name of a certificate").into()))?;
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, tcp)
        .await
        .map_err(|error| LedgerError::Unavailable(format!("{address}: the TLS handshake failed: {error}").into()))?;
    Ok(Box::new(stream))
}

/// User and password. The file is small and local, so it is read without another thread.
fn login(options: &ValkeyOptions) -> Result<RedisConnectionInfo, LedgerError> {
    let mut info = RedisConnectionInfo::default().set_skip_set_lib_name();
    if let Some(user) = &options.url.user {
        info = info.set_username(user);
    }
    let from_file = options.password_file.as_ref().map(|file| {
        std::fs::read_to_string(file).map_err(|error| {
            LedgerError::Refused(format!("the password file {} cannot be read: {error}", file.display()).into())
        })
    });
    let from_file = from_file.transpose()?;
    if let Some(password) =
        from_file.as_deref().map(|text| text.trim_end_matches(['\r', '\n'])).or(options.url.password.as_deref())
    {
        info = info.set_password(password);
    }
    Ok(info)
}

/// An error while connecting.
pub(super) fn at(address: &Address, error: &RedisError) -> LedgerError {
    match ledger_error(error) {
        LedgerError::Unavailable(text) => LedgerError::Unavailable(format!("{address}: {text}").into()),
        LedgerError::Refused(text) => LedgerError::Refused(format!("{address}: {text}").into()),
        other => other,
    }
}

/// Whether the server does not know the script of a call by hash.
pub(super) fn is_missing_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// Whether the reason of an error is that another node of the cluster has the keys. The command was not executed.
pub(super) fn is_moved(reason: &str) -> bool {
    reason.starts_with("MOVED ")
}

/// Whether the same connection can soon be used again.
fn is_passing(error: &RedisError) -> bool {
    use ServerErrorKind::{Ask, ClusterDown, Moved, TryAgain};
    matches!(error.kind(), ErrorKind::Server(TryAgain | Ask | Moved | ClusterDown)) || error.code() == Some("BUSY")
}

/// Maps an error of the client to one of the ledger.
pub(super) fn ledger_error(error: &RedisError) -> LedgerError {
    use ServerErrorKind as Server;
    let text: Arc<str> = match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}").into(),
        _ => error.to_string().into(),
    };
    match error.kind() {
        ErrorKind::AuthenticationFailed => {
            LedgerError::Refused(format!("authentication failed, check the user and the password: {text}").into())
        }
        ErrorKind::Server(
            Server::BusyLoading
            | Server::MasterDown
            | Server::ReadOnly
            | Server::ClusterDown
            | Server::Moved
            | Server::Ask
            | Server::TryAgain,
        )
        | ErrorKind::Io
        | ErrorKind::Parse => LedgerError::Unavailable(text),
        ErrorKind::Extension if matches!(error.code(), Some("BUSY" | "UNBLOCKED")) => LedgerError::Unavailable(text),
        ErrorKind::Extension if matches!(error.code(), Some("NOAUTH" | "WRONGPASS")) => {
            LedgerError::Refused(format!("authentication failed, check the user and the password: {text}").into())
        }
        _ if error.is_io_error() || error.is_connection_dropped() => LedgerError::Unavailable(text),
        _ => LedgerError::Refused(text),
    }
}
