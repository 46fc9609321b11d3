// SPDX-License-Identifier: Apache-2.0
//! TLS settings of the ports.

use std::path::PathBuf;

use clap::Args;

/// The certificates. A port with a certificate accepts only TLS.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "TLS")]
pub struct TlsConfig {
    /// PEM file with the certificate chain of both ports; it is reloaded when it changes
    #[arg(long, env = "TOKENTAP_TLS_CERT", value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// PEM file with its private key, not encrypted
    #[arg(long, env = "TOKENTAP_TLS_KEY", value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// PEM file with the certificate chain of the control port alone
    #[arg(long, env = "TOKENTAP_CONTROL_TLS_CERT", value_name = "FILE")]
    pub control_tls_cert: Option<PathBuf>,
    /// PEM file with its private key
    #[arg(long, env = "TOKENTAP_CONTROL_TLS_KEY", value_name = "FILE")]
    pub control_tls_key: Option<PathBuf>,
}

/// The two files of a port, and the flags that named them.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The certificate and its chain.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The flags of both, in this order.
    pub flags: [&'static str; 2],
}

const BOTH: [&str; 2] = ["--tls-cert", "--tls-key"];
const CONTROL: [&str; 2] = ["--control-tls-cert", "--control-tls-key"];

impl TlsConfig {
    /// Checks that each certificate has a key.
    pub(super) fn check(&self) -> Result<(), String> {
        for (cert, key, [cert_flag, key_flag]) in
            [(&self.tls_cert, &self.tls_key, BOTH), (&self.control_tls_cert, &self.control_tls_key, CONTROL)]
        {
            let (given, lacking) = match (cert, key) {
                (None, None) | (Some(_), Some(_)) => continue,
                (Some(_), None) => (cert_flag, key_flag),
                (None, Some(_)) => (key_flag, cert_flag),
            };
            return Err(format!("{given} is of no use without {lacking}: give both, or neither"));
        }
        Ok(())
    }

    /// The files of the data port.
    #[must_use]
    pub fn data(&self) -> Option<TlsFiles> {
        files(self.tls_cert.as_ref(), self.tls_key.as_ref(), BOTH)
    }

    /// The files of the control port: its own, or those of both.
    #[must_use]
    pub fn control(&self) -> Option<TlsFiles> {
        files(self.control_tls_cert.as_ref(), self.control_tls_key.as_ref(), CONTROL).or_else(|| self.data())
    }
}

fn files(cert: Option<&PathBuf>, key: Option<&PathBuf>, flags: [&'static str; 2]) -> Option<TlsFiles> {
    cert.zip(key).map(|(cert, key)| TlsFiles { cert: cert.clone(), key: key.clone(), flags })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(given: [bool; 4]) -> TlsConfig {
        let [tls_cert, tls_key, control_tls_cert, control_tls_key] =
            ["a.crt", "a.key", "b.crt", "b.key"].map(PathBuf::from).map(Some);
        let mut config = TlsConfig { tls_cert, tls_key, control_tls_cert, control_tls_key };
        let TlsConfig { tls_cert, tls_key, control_tls_cert, control_tls_key } = &mut config;
        for (file, given) in [tls_cert, tls_key, control_tls_cert, control_tls_key].into_iter().zip(given) {
            *file = file.take().filter(|_| given);
        }
        config
    }

    #[test]
    fn a_certificate_and_its_key_come_together() {
        assert_eq!(config([false; 4]).check(), Ok(()));
        for (given, words) in [
            ([true, false, false, false], "--tls-cert is of no use without --tls-key"),
            ([false, true, false, false], "--tls-key is of no use without --tls-cert"),
            ([true, true, true, false], "--control-tls-cert is of no use without --control-tls-key"),
            ([false, false, false, true], "--control-tls-key is of no use without --control-tls-cert"),
        ] {
            let line = config(given).check().unwrap_err();
            assert!(line.contains(words), "{given:?}: {line}");
        }
        assert_eq!(config([true; 4]).check(), Ok(()));
    }

    #[test]
    fn control_port_uses_its_certificate_or_the_shared_one() {
        let named = |files: Option<TlsFiles>| files.map(|files| (files.cert, files.flags[1]));
        assert!(config([false; 4]).control().is_none());
        let both = config([true, true, false, false]);
        assert_eq!(named(both.control()), Some((PathBuf::from("a.crt"), "--tls-key")));
        assert_eq!(named(config([true; 4]).control()), Some((PathBuf::from("b.crt"), "--control-tls-key")));
        let alone = config([false, false, true, true]);
        assert!(alone.data().is_none() && alone.control().is_some(), "TLS on the control port alone");
    }
}
