# frozen_string_literal: true

require_relative "build"

module Tasks
  # Collects the messages of all errors out of the sources, for docs/reference/errors.md.
  class ErrorTable
    PAGE = File.join(Build::ROOT, "docs", "reference", "errors.md")
    MARK = "<!-- rake doc:errors writes from here -->"

    # What the engine calls the classes of lib/candle/errors.rb.
    ENGINE = {
      "ModelNotFound" => "ModelNotFoundError", "Download" => "DownloadError", "Offline" => "OfflineError",
      "UnsupportedModel" => "UnsupportedModelError", "CorruptModel" => "CorruptModelError", "Device" => "DeviceError",
      "OutOfMemory" => "OutOfMemoryError", "Tokenizer" => "TokenizerError", "InvalidInput" => "InvalidInputError",
      "Generation" => "GenerationError", "Closed" => "Error", "corrupt" => "CorruptModelError",
      "unsupported" => "UnsupportedModelError"
    }.freeze

    INTERPOLATION = /#\{(?:[^{}]|\{[^{}]*\})*\}/
    RUBY = /raise(?:\(|\s+)\(?(?:Candle::)?(\w*Error)(?:\.new\(|,)\s*((?:"(?:[^"\\]|\\.)*"(?:\s*\\\n\s*)?)+)/m
    RUST = /\bError::(#{ENGINE.keys.join("|")})\(\s*(?:[\w.()&]+,\s*)?(?:format(?:_args)?!\(\s*)?"((?:[^"\\]|\\.)*)"/m

    # @return [String] the page as it should be
    def page
      introduction = File.read(PAGE).partition(MARK).first
      "#{introduction}#{MARK}\n\n#{sections.join("\n")}"
    end

    # @return [void]
    def write
      File.write(PAGE, page)
    end

    # @return [Hash{String => Array<String>}] the messages of each class, `…` standing for what is filled in
    def messages
      (ruby + rust).group_by(&:first).transform_values { |pairs| pairs.map(&:last).uniq.sort }
    end

    private

    def sections
      messages.sort.map { |name, texts| "## #{name}\n\n#{texts.map { |text| "- #{text}" }.join("\n")}\n" }
    end

    def ruby
      sources("lib/**/*.rb").flat_map do |source|
        found = source.gsub(INTERPOLATION, "…").scan(RUBY)
        found.map { |name, literals| [name, shown(literals.scan(/"((?:[^"\\]|\\.)*)"/m).join)] }
      end
    end

    def rust
      sources("ext/*/src/**/*.rs").flat_map do |source|
        source.split("#[cfg(test)]").first.scan(RUST).filter_map do |name, text|
          [ENGINE.fetch(name), shown(text.gsub(/\\\n\s*/, "").gsub("{{", "{").gsub("}}", "}"))]
        end
      end
    end

    def sources(pattern)
      Dir.glob(pattern, base: Build::ROOT).sort.reject { |path| path.match?(%r{/bin/|/selftest|/server}) }
         .map { |path| File.read(File.join(Build::ROOT, path)) }
    end

    def shown(text)
      text = text.gsub(/\{[\w:?.#$]*\}/, "…").gsub(/\\(["\\])/, '\1')
      text.gsub('\n', " ").gsub(/([<>*_`])/) { "\\#{Regexp.last_match(1)}" }.strip
    end
  end
end
