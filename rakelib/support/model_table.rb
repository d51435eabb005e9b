# frozen_string_literal: true

require "json"
require_relative "build"

module Tasks
  # Writes what {Candle.supported_models} says into docs/reference/models.md, and how many there are into README.md.
  class ModelTable
    PAGE = File.join(Build::ROOT, "docs", "reference", "models.md")
    README = File.join(Build::ROOT, "README.md")
    FIRST = "<!-- rake doc:models writes from here -->"
    LAST = "<!-- to here: model types -->"
    COUNT = /\d+ model types/
    FIXTURES = File.join(Build::ROOT, "spec", "fixtures")

    # @return [Array<Hash>] what all builds support together
    def self.supported
      Candle::SupportedModels.list(devices: Candle::SupportedModels::DEVICES)
    end

    # @param supported [Array<Hash>] see {Candle.supported_models}
    def initialize(supported)
      @supported = supported
    end

    # @return [Hash{String => String}] each file, as it should be
    def pages
      before, _, rest = File.read(PAGE).partition(FIRST)
      after = rest.partition(LAST).last
      { PAGE => "#{before}#{FIRST}\n\n#{table}\n#{LAST}#{after}",
        README => File.read(README).sub(COUNT, "#{@supported.size} model types") }
    end

    # @return [void]
    def write
      pages.each { |path, text| File.write(path, text) }
    end

    private

    def table
      rows = @supported.map do |model|
        [code([model[:model_type]]), model[:tasks].join(", "), formats(model), code(model[:architectures]),
         code(model[:projectors]), model[:devices].join(", "),
         reference(model[:model_type])]
      end
      header = ["`model_type`", "tasks", "formats", "GGUF architectures", "`mmproj` projectors", "devices",
                "compared with"]
      [header, ["---"] * header.size, *rows].map { |row| "| #{row.join(" | ")} |\n" }.join
    end

    # A decoder's GGUF file alone reads no images.
    def formats(model)
      blind = model[:tasks].include?(:vlm) && model[:projectors].empty?
      model[:formats].join(", ").sub("gguf", blind ? "gguf (texts only)" : "gguf")
    end

    def code(names)
      names.empty? ? "–" : names.map { |name| "`#{name}`" }.join(", ")
    end

    # @return [String] what wrote the results that a model type is compared with
    def reference(type)
      return "transformers" if compared[false]&.include?(type)

      compared[true]&.include?(type) ? "PyTorch" : "–"
    end

    # The model types of all checkpoints with results, parts of a checkpoint included, by whether code of this project
    # wrote them, since transformers has none for the type.
    def compared
      folders = "{tiny,seeded,seeded_encoders,seeded_vlms,seeded_pictures,seeded_readers}"
      paths = Dir[File.join(FIXTURES, folders, "**", "config.json")]
      @compared ||= paths.group_by { |path| written_here?(path) }.transform_values do |some|
        some.flat_map { |path| model_types(JSON.parse(File.read(path))) }.compact.uniq
      end
    end

    def model_types(config)
      [config, *config.values.grep(Hash)].map { |part| part["model_type"] }
    end

    def written_here?(config)
      expected = File.join(File.dirname(config), "expected.json")
      File.file?(expected) && File.read(expected, 10) == '{"torch": '
    end
  end
end
