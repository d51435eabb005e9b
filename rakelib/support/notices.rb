# frozen_string_literal: true

require_relative "build"

module Tasks
  # Writes THIRD_PARTY_NOTICES.md: the crates that the extension is built from, with their licenses. They are read from
  # Cargo's own copies of the sources.
  class Notices
    PAGE = File.join(Build::ROOT, "THIRD_PARTY_NOTICES.md")
    LICENSE_FILES = /\A(licen[sc]e|copying|notice|copyright|unlicense)/i
    COPYRIGHT = /^[ \t]*(?:copyright|©).*$/i

    INTRODUCTION = <<~TEXT
      # Third-party notices

      The native extension of red-candle contains code of these crates, or was built with them. `rake notices` writes this
      page from `Cargo.lock` and the sources that Cargo fetched for the platforms at hand (`cargo fetch` fetches those of
      all). Where a crate may be used under one of several licenses, the text of each is given below.
    TEXT

    Crate = Struct.new(:name, :version, :license, :texts, keyword_init: true)

    # @return [Array<Array(String, String)>] name and version of every crate of a registry in Cargo.lock
    def locked
      File.read(File.join(Build::ROOT, "Cargo.lock")).split("[[package]]\n").filter_map do |entry|
        [entry[/^name = "(.+)"/, 1], entry[/^version = "(.+)"/, 1]] if entry.include?("\nsource = ")
      end
    end

    # @return [Array<Array(String, String)>] those whose sources are here
    def present
      locked.select { |name, version| folder(name, version) }
    end

    # @return [Array<Array(String, String)>] name and version of every crate on the page
    def noticed
      File.read(PAGE).scan(/^\| (\S+) \| (\S+) \| .* \|$/).reject { |name, _| name.match?(/\A(crate|-+)\z/) }
    end

    # @return [void]
    def write
      File.write(PAGE, "#{INTRODUCTION}\n#{table}\n#{texts}")
    end

    private

    def crates
      @crates ||= present.map do |name, version|
        folder = folder(name, version)
        license = File.read(File.join(folder, "Cargo.toml"))[/^license = "(.+)"/, 1] || "see its text"
        Crate.new(name: name, version: version, license: license, texts: license_texts(folder))
      end
    end

    def folder(name, version)
      Dir[File.join(cargo_home, "registry", "src", "*", "#{name}-#{version}")].first
    end

    def cargo_home
      ENV.fetch("CARGO_HOME") { File.join(Dir.home, ".cargo") }
    end

    def license_texts(folder)
      Dir.children(folder).grep(LICENSE_FILES).sort.filter_map do |name|
        path = File.join(folder, name)
        File.read(path, encoding: "UTF-8").scrub.strip if File.file?(path)
      end
    end

    def table
      rows = crates.map { |crate| "| #{crate.name} | #{crate.version} | #{crate.license} |" }
      "#{["| crate | version | license |", "|---|---|---|", *rows].join("\n")}\n"
    end

    # Each text once, with those who hold rights under it.
    def texts
      groups = Hash.new { |hash, key| hash[key] = { text: nil, holders: [] } }
      crates.each do |crate|
        crate.texts.each do |text|
          group = groups[text.gsub(COPYRIGHT, "").downcase.gsub(/[^a-z]+/, "")]
          group[:text] ||= text.gsub(COPYRIGHT, "").gsub(/\n{3,}/, "\n\n").strip
          group[:holders] << "#{crate.name}#{holders(text)}"
        end
      end
      groups.values.map { |group| "\n## #{group[:holders].uniq.join("; ")}\n\n```\n#{group[:text]}\n```\n" }.join
    end

    def holders(text)
      lines = text.scan(COPYRIGHT).map { |line| line.strip.squeeze(" ") }.uniq
      lines = lines.grep(/\d{4}|©|\(c\)/i).grep_v(/\[yyyy\]|owner or|notice|license/i).first(3)
      lines.empty? ? "" : " (#{lines.join(", ")})"
    end
  end
end
