# SPDX-License-Identifier: Apache-2.0
# SGLang with the plugin for exact entropies. The plugin supports this version only and stays off in any other.
#
#   docker build -f deploy/sglang.Dockerfile -t sglang-tokentap:0.5.23 python/tokentap-sglang

FROM lmsysorg/sglang:v0.5.23
COPY . /opt/tokentap-sglang
# no dependencies: the plugin uses SGLang's packages in SGLang's versions
RUN pip install --no-cache-dir --no-deps /opt/tokentap-sglang
