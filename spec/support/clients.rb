# frozen_string_literal: true

require "fileutils"
require "open3"
require "timeout"
require_relative "../../rakelib/support/build"

# The clients that people use, of pinned versions, installed once into the user's cache.
module Clients
  PYTHON = %w[openai==2.54.0 huggingface_hub==1.33.0 ollama==0.6.3 litellm==1.106.2 prometheus_client==0.26.0
              anthropic==2.9.0 numpy<3].freeze
  # Its dependencies are not those of the others.
  MCP = %w[mcp==2.3.0].freeze
  LANGCHAIN = %w[langchain-openai==1.7.3].freeze
  NODE = %w[openai].freeze
  SECONDS = 300
  SCRIPTS = File.join(__dir__, "clients")

  module_function

  # @return [Array(String, nil), Array(nil, String)] the interpreter, or why there is none
  def python = @python ||= environment("python", PYTHON)

  # @return [Array(String, nil), Array(nil, String)] the interpreter that has LangChain, or why there is none
  def langchain = @langchain ||= environment("langchain", LANGCHAIN)

  # @return [Array(String, nil), Array(nil, String)] the interpreter that has MCP's own SDK, or why there is none
  def mcp = @mcp ||= environment("mcp", MCP)

  def environment(name, packages)
    directory, reason = prepared(name, packages) do |target|
      run("python3", "-m", "venv", target)
      run(File.join(target, "bin", "python"), "-m", "pip", "install", "--quiet", *packages)
    end
    [directory && File.join(directory, "bin", "python"), reason]
  end

  # @return [Array(String, nil), Array(nil, String)] the directory with the packages, or why there is none
  def node
    @node ||= prepared("node", NODE) do |directory|
      File.write(File.join(directory, "package.json"), "{}")
      run("npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", directory, *NODE)
    end
  end

  def prepared(name, packages)
    directory = File.join(Tasks::Build.cache_directory, "clients", name)
    stamp = File.join(directory, "installed")
    return [directory, nil] if File.exist?(stamp) && File.read(stamp) == packages.join("\n")

    FileUtils.rm_rf(directory)
    FileUtils.mkdir_p(directory)
    yield directory
    File.write(stamp, packages.join("\n"))
    [directory, nil]
  rescue RuntimeError, SystemCallError => e
    [nil, "the clients can't be installed here: #{e.message.lines.first}"]
  end

  def run(*command)
    Open3.popen2e(*command) do |input, output, process|
      input.close
      text = Timeout.timeout(SECONDS) { output.read }
      raise "#{command.first(4).join(" ")}: #{text.lines.last}" unless process.value.success?
    rescue Timeout::Error
      Process.kill("KILL", process.pid)
      raise "#{command.first(4).join(" ")} took longer than #{SECONDS} s"
    end
  end
end
