# frozen_string_literal: true

require_relative "lib/candle/version"

Gem::Specification.new do |spec|
  spec.name = "red-candle"
  spec.version = Candle::VERSION
  spec.authors = ["The red-candle authors"]
  spec.summary = "Transformer models inside a Ruby process"
  spec.description = "Tensors, tokenizers, embeddings, reranking, token classification and language models " \
                     "for Ruby: a native extension over Hugging Face's candle, without a Python process or a server."
  spec.homepage = "https://github.com/scientist-labs/red-candle"
  spec.license = "MIT"
  spec.required_ruby_version = ">= 3.1"
  spec.metadata = {
    "source_code_uri" => spec.homepage,
    "changelog_uri" => "#{spec.homepage}/blob/main/CHANGELOG.md",
    "bug_tracker_uri" => "#{spec.homepage}/issues",
    "rubygems_mfa_required" => "true"
  }

  spec.files = Dir.chdir(__dir__) do
    Dir["lib/**/*.{rb,html,tt}", "sig/**/*.rbs", "exe/*", "completions/*",
        "ext/candle/{build_options,extconf,cuda/extconf}.rb",
        "ext/{base,kernels,formats,engine,candle}/{Cargo.toml,build.rs}",
        "ext/{base,kernels,formats,engine,candle}/src/**/*", "Cargo.{toml,lock}", "README.md", "CHANGELOG.md",
        "CONTRIBUTING.md", "LICENSE", "THIRD_PARTY_NOTICES.md", "docs/**/*.{md,svg}", "examples/*.rb", ".yardopts"]
      .select { |path| File.file?(path) }
      .sort
  end
  spec.require_paths = ["lib"]
  spec.bindir = "exe"
  spec.executables = spec.files.grep(%r{\Aexe/}) { |path| File.basename(path) }
  spec.extensions = ["ext/candle/extconf.rb", "ext/candle/cuda/extconf.rb"]

  # The command line; plain Ruby without dependencies of its own. The server's Puma stays the user's choice.
  spec.add_dependency "thor", ">= 1.2", "< 2"
  # Parts of the standard library that Ruby 4.0 carries as gems: Bundler hides those that nobody names.
  spec.add_dependency "logger", ">= 1.4", "< 2"
  spec.add_dependency "reline", ">= 0.3", "< 1"
  # Only the build needs it; precompiled gems drop it.
  spec.add_dependency "rb_sys", ">= 0.9.87", "< 1"
end
