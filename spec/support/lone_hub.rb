# frozen_string_literal: true

require "fileutils"
require "tmpdir"

# A hub on this machine that serves tiny checkpoints, with a cache and gems of its own, while the block runs.
module LoneHub
  NAMES = %w[HF_HOME HF_HUB_CACHE HF_ENDPOINT HF_TOKEN HF_HUB_OFFLINE TRANSFORMERS_OFFLINE XDG_CACHE_HOME HTTP_PROXY
             HTTPS_PROXY ALL_PROXY http_proxy https_proxy all_proxy].freeze

  module_function

  # Yields the server and a directory of its own, which is also the current one.
  def open
    saved = NAMES.to_h { |name| [name, ENV.delete(name)] }
    server = HubServer.new
    Dir.mktmpdir("lone-hub") do |home|
      ENV["HF_HOME"] = File.join(home, "hf")
      ENV["XDG_CACHE_HOME"] = File.join(home, "cache")
      ENV["HF_ENDPOINT"] = server.url
      Dir.chdir(home) { yield server, home }
    end
  ensure
    server&.stop
    saved.each { |name, value| ENV[name] = value }
  end

  # Puts a tiny checkpoint on the server.
  def serve(server, id, checkpoint)
    directory = TinyModels.path(checkpoint)
    Dir.glob("**/*", base: directory).each do |name|
      file = File.join(directory, name)
      server.add(id, name, File.binread(file), large: name.end_with?(".safetensors")) if File.file?(file)
    end
  end
end
