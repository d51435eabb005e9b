# frozen_string_literal: true

require "tempfile"
require_relative "../../../spec/support/tiny_folder"
require_relative "soft"
require_relative "verdicts"

module Tasks
  module Metal
    # Runs every tiny checkpoint and one seeded checkpoint per mechanism on the software device, in three types, against
    # the CPU; then the Ruby specs on an extension for which `device: "metal"` exists.
    class Models
      include Verdicts

      TINY = File.join(TinyFolder::TARGET, "tiny")
      SEEDED = File.join(Build::ROOT, "spec/fixtures/seeded")
      # Checkpoints that other libraries quantized.
      QUANTIZED = File.join(Build::ROOT, "spec/fixtures/quantized")
      # Specs of the device itself, and those whose models {ON_METAL} puts there.
      SPECS = "ext/softmetal/spec"
      ON_METAL = File.join(Build::ROOT, SPECS, "on_metal.rb")
      PARITY = %w[spec/parity/embedding_spec.rb spec/parity/heads_spec.rb].freeze
      # One checkpoint per shape, watched access by access.
      SHAPES = %w[bert modernbert deberta-v2 seq2seq/t5 decoders/llama decoders/gemma3 decoders/qwen2-moe
                  gguf-decoders/llama gemma3-vision qwen2-vl ../quantized/gptq ../quantized/bitsandbytes].freeze
      # One seeded checkpoint per mechanism that no tiny checkpoint has.
      MECHANISMS = %w[gpt_oss llama4_text gemma3n_text gemma4_text deepseek_v3 deepseek_v32 diffllama jetmoe apertus
                      bloom hrm_text longcat_flash granitemoehybrid qwen3_next kimi_linear mamba recurrent_gemma rwkv
                      minimax].freeze

      # A planted bug: who must notice, under which settings, and what must be said.
      Plant = Struct.new(:title, :command, :settings, :told, keyword_init: true)
      BARRIERS = { check: 1, plant: "no-barriers" }.freeze
      FENCES = { check: 1, plant: "no-fences" }.freeze
      PLANTS = [
        { title: "dropped barriers", command: ["model_selftest", "--device", "metal", "tmp/fixtures/tiny/bert"],
          settings: BARRIERS, told: /hazard: .* \(same encoder\)/ },
        { title: "missing fences", command: ["model_selftest", "--device", "metal", "tmp/fixtures/tiny/bert"],
          settings: FENCES, told: /hazard: .* \(earlier encoder\)/ },
        { title: "an output bound as an input", command: %w[planted output-as-input], settings: { check: 1 },
          told: /twice: hazard: reads what twice \(same encoder\) wrote/ },
        { title: "a wrong offset", command: %w[planted wrong-offset], settings: { check: 1 },
          told: /twice: reads 4 bytes outside of its buffers/ },
        { title: "fences that candle's waiting loses", command: %w[threads --candle], settings: { check: 1 },
          told: /hazard: .* \(earlier encoder\)/ },
        { title: "a kernel without an instance for bf16",
          command: ["model_selftest", "--device", "metal", "tmp/fixtures/tiny/bert"],
          settings: { mutation: ["struct NormParameters", "NORM_KERNELS(bf16, bfloat)", ""] },
          told: /no function (add_)?layer_norm_bf16/ },
        { title: "too much threadgroup memory",
          command: ["model_selftest", "--device", "metal", "tmp/fixtures/tiny/bert"],
          settings: { mutation: ["struct NormParameters", "partials[3 *", "partials[300 *"] },
          told: /more than 32768 bytes of threadgroup memory/ }
      ].map { |attributes| Plant.new(**attributes) }.freeze
      # What must be right for a planted bug to say something: the same without one.
      SOUND = [%w[planted none], %w[threads]].freeze

      # @param seeded [Array<String>] the seeded checkpoints to run
      def initialize(soft = Soft.new, seeded: MECHANISMS)
        @soft = soft
        TinyFolder.path
        @seeded = seeded
      end

      # @return [Boolean] whether all is well but the specs; says what is not
      def run
        [models, seeded, watched, planted].all?
      end

      # Seeded checkpoints, each command buffer as late as Metal allows.
      def seeded
        folders = @seeded.map { |name| File.join(SEEDED, name) }
        runs = Soft.in_parallel(parts(folders).map { |part| -> { selftest(part) } })
        puts "seeded: #{runs.sum { |run| run.output.lines.grep(/\A(ok|FAILED) /).size }} runs of models"
        runs.each { |run| puts run.output.lines.grep(/\Anot run/) }
        runs.map { |run| sound?("seeded", run) }.all?
      end

      # Every checkpoint in every type, each command buffer as late as Metal allows; then one of each shape at once and
      # with threadgroups backwards.
      def models
        late = shards.map { |folders| -> { ["late, forwards", selftest(folders)] } }
        early = lambda do
          folders = SHAPES.map { |name| File.join(TINY, name) }
          ["at once, backwards", selftest(folders, eager: 1, schedule: "backwards")]
        end
        runs = Soft.in_parallel([*late, early])
        runs.each do |title, run|
          puts "#{title}: #{run.output.lines.grep(/\A(ok|FAILED) /).size} runs of models",
               run.output.lines.grep(/\Anot run/)
        end
        runs.map { |title, run| sound?(title, run) }.all?
      end

      # One checkpoint per shape with every access watched.
      def watched
        jobs = SHAPES.map { |name| -> { [name, selftest([File.join(TINY, name)], check: 1, schedule: "shuffled")] } }
        Soft.in_parallel(jobs).map { |name, run| sound?("watched: #{name}", run) }.all?
      end

      # The same programs with a bug, which must be noticed, and without.
      def planted
        outcomes = Soft.in_parallel(PLANTS.map { |plant| -> { [plant, run_planted(plant)] } })
        outcomes.each do |plant, run|
          found = run.findings.grep(plant.told).first
          puts "#{found ? "noticed" : "NOT NOTICED"}: #{plant.title}: #{found || run.output.lines.last}"
        end
        sound = SOUND.map { |words| sound?(words.join(" "), @soft.run(*program(words), check: 1)) }
        sound.all? && outcomes.all? { |plant, run| run.findings.grep(plant.told).any? }
      end

      # Ruby finds the extension of the software device before the other one.
      def specs
        runs = Soft.in_parallel([[SPECS], ["-r", ON_METAL, *PARITY]].map do |words|
          -> { @soft.run("bundle", "exec", "rspec", "-I", Soft::LIBRARY, *words) }
        end)
        runs.each { |run| puts run.output.lines.grep(/examples,/) }
        runs.map { |run| sound?("specs", run) }.all?
      end

      private

      def program(words)
        [@soft.program(words.first), *words.drop(1)]
      end

      def run_planted(plant)
        settings = plant.settings
        return @soft.run(*program(plant.command), **settings) unless settings.key?(:mutation)

        Tempfile.create("plant") do |file|
          within, from, to = settings[:mutation]
          file.write("#{within}\n#{from}\n=====\n#{to}\n")
          file.close
          @soft.run(*program(plant.command), plant: file.path)
        end
      end

      def selftest(folders, **settings)
        @soft.run(@soft.program("model_selftest"), "--device", "metal", *folders, **settings)
      end

      # The checkpoints in as many parts as there are processors, of about the same number of files.
      def shards
        parents = %w[decoders gguf-decoders seq2seq gguf-seq2seq gguf-vlms].map { |name| File.join(TINY, name) }
        folders = [TINY, QUANTIZED, *parents].flat_map { |path| Dir[File.join(path, "*")] }
        folders = folders.select { |path| File.directory?(path) }
        parts((folders - parents).sort)
      end

      def parts(folders)
        numbered = folders.each_with_index.group_by { |_, index| index % Etc.nprocessors }
        numbered.values.map { |pairs| pairs.map(&:first) }
      end
    end
  end
end
