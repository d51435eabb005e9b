# frozen_string_literal: true

require "fileutils"
require "json"
require "rubygems/package"
require "tmpdir"
require "yaml"

module Candle
  class CLI
    # `red-candle pack`: gems that hold a checkpoint, for {ModelGems} to find.
    #
    # @api private
    class Pack < Verb
      # What a license or a model card is called.
      PAPERS = %r{\A(licen[cs]e|copying|notice|readme|use_policy)[^/]*\z}i
      LICENSE = %r{\A(licen[cs]e|copying)[^/]*\z}i
      # The names of licenses on the hub that are SPDX's but for their case.
      SPDX = %w[Apache-2.0 MIT BSD-2-Clause BSD-3-Clause CC-BY-4.0 CC-BY-SA-4.0 CC-BY-NC-4.0 CC-BY-NC-SA-4.0 CC0-1.0
                GPL-3.0 AGPL-3.0 LGPL-3.0 MPL-2.0 ISC Unlicense OpenRAIL].to_h { |name| [name.downcase, name] }.freeze
      UNITS = { "" => 1, "K" => 1_000, "M" => 1_000_000, "G" => 1_000_000_000 }.freeze
      private_constant :PAPERS, :LICENSE, :SPDX, :UNITS

      # @param source [String] a Hugging Face id, or a directory whose id `--id` says
      # @return [void]
      def call(source)
        @source = source
        directory = fetched
        unless entry["files"].sum { |file| file["size"] }.positive? && entry["files"].any? { |file| weights?(file) }
          raise ModelNotFoundError, "#{source} has no weights to pack"
        end

        built = Dir.mktmpdir("red-candle-pack") { |staging| build(directory, staging) }
        show({ id: id, gems: built, license: license(directory) }) { built.each { |path| puts path } }
      end

      private

      attr_reader :entry

      def id
        return @source unless File.exist?(@source)

        options[:id] || raise(ArgumentError, "#{@source} is a directory: say with --id what it is to be loaded by")
      end

      def weights?(file)
        file["name"].match?(/\.(safetensors|gguf|bin)\z/)
      end

      # @return [String] the directory that has the files; {#entry} says which
      def fetched
        lock = ModelsLock.read(File.join(Dir.tmpdir, "red-candle-pack-#{Process.pid}.lock"))
        @entry = lock.add(@source, revision: options[:revision])
        if File.exist?(@source)
          @entry = { "id" => id, "revision" => "main", "commit" => "local", "files" => entry["files"] }
          return File.expand_path(@source)
        end
        papers = Hub.files(@source, revision: entry["commit"]).grep(PAPERS)
        Hub.snapshot(@source, revision: entry["commit"], files: entry["files"].map { |file| file["name"] } + papers)
      end

      def papers(directory)
        Dir.children(directory).grep(PAPERS).select { |name| File.file?(File.join(directory, name)) }.sort
      end

      # @return [Array<String>] the gems that were built
      def build(directory, staging)
        small, cut = planned
        parts = cut.flat_map { |file| piece_gems(directory, staging, file) }
        main = File.join(staging, "main")
        write_main(directory, main, small, cut)
        names = parts.map(&:name)
        gem = specification(directory, ModelGems.name_of(id), "#{id} for red-candle") do |spec|
          spec.metadata[ModelGems::METADATA] = id
          names.each { |name| spec.add_runtime_dependency(name, "= #{version}") }
        end
        [*parts.map { |part| package(part, File.join(staging, part.name)) }, package(gem, main)]
      end

      # Small files first, into the main gem; what does not fit there is cut.
      def planned
        total = 0
        entry["files"].sort_by { |file| file["size"] }.partition { |file| (total += file["size"]) <= limit }
      end

      def piece_gems(directory, staging, file)
        count = (file["size"].to_f / limit).ceil
        @pieces ||= {}
        @pieces[file["name"]] = Array.new(count) do |index|
          name = "#{ModelGems.name_of(id)}-part#{@pieces.values.sum(&:size) + index + 1}"
          target = File.join(staging, name)
          FileUtils.mkdir_p(target)
          IO.copy_stream(File.join(directory, file["name"]), File.join(target, ModelGems::PIECE), limit, index * limit)
          copy_papers(directory, target)
          name
        end
        @pieces[file["name"]].map { |name| specification(directory, name, "A piece of #{id} for red-candle") }
      end

      def write_main(directory, main, small, cut)
        small.each { |file| place(File.join(directory, file["name"]), File.join(main, "model", file["name"])) }
        copy_papers(directory, main)
        FileUtils.mkdir_p(File.join(main, "lib"))
        File.write(File.join(main, "lib", "#{ModelGems.name_of(id)}.rb"), "# frozen_string_literal: true\n")
        lock = { red_candle_models: 1, models: [entry] }
        File.write(File.join(main, ModelsLock::DEFAULT_PATH), "#{JSON.pretty_generate(lock)}\n")
        File.write(File.join(main, ModelGems::PIECES), JSON.generate(@pieces)) if cut.any?
      end

      def copy_papers(directory, target)
        papers(directory).each { |name| place(File.join(directory, name), File.join(target, name)) }
      end

      # Copied, since what the cache has may be readable by its owner alone.
      def place(from, to)
        FileUtils.mkdir_p(File.dirname(to))
        FileUtils.cp(from, to)
        File.chmod(0o644, to)
      end

      def specification(directory, name, summary)
        Gem::Specification.new do |spec|
          spec.name = name
          spec.version = version
          spec.summary = summary
          spec.description = "#{summary}. Its license is that of the checkpoint: #{license(directory)}."
          spec.authors = [id.split("/").first]
          spec.homepage = "https://huggingface.co/#{id}"
          spec.licenses = [SPDX.fetch(license(directory).downcase, "Nonstandard")]
          spec.metadata["red_candle_commit"] = entry["commit"]
          yield spec if block_given?
        end
      end

      def package(spec, directory)
        target = File.expand_path(options[:output])
        FileUtils.mkdir_p(target)
        Dir.chdir(directory) do
          spec.files = Dir.glob("**/*").select { |name| File.file?(name) }.sort
          Gem::DefaultUserInteraction.use_ui(Gem::SilentUI.new) { Gem::Package.build(spec, true) }
          FileUtils.mv(spec.file_name, target)
        end
        File.join(target, spec.file_name)
      end

      # What the model card says, or that there is a text of its own.
      def license(directory)
        @license ||= options[:license] || card(directory)["license"]&.to_s || own_license(directory)
      end

      def card(directory)
        text = File.read(File.join(directory, "README.md"), encoding: "UTF-8").scrub
        front = text[/\A---\s*\n(.*?)\n---\s*$/m, 1]
        if front
          YAML.safe_load(front).then { |card| card.is_a?(Hash) ? card : {} }
        else
          {}
        end
      rescue Errno::ENOENT, Psych::Exception
        {}
      end

      def own_license(directory)
        named = papers(directory).grep(LICENSE).first
        return "see #{named}" if named

        warn("#{id} says nothing of its license: ask its authors before you pass the gem on")
        "unknown"
      end

      def version
        options[:gem_version]
      end

      def limit
        @limit ||= begin
          number, unit = options[:limit].to_s.upcase.match(/\A(\d+)\s*([KMG]?)B?\z/)&.captures
          bytes = number.to_i * UNITS.fetch(unit.to_s)
          raise ArgumentError, "--limit takes a size such as 500MB, not #{options[:limit]}" unless bytes.positive?

          bytes
        end
      end
    end
  end
end
