# frozen_string_literal: true

require "yard"
require_relative "build"

module Tasks
  # Compares YARD's view of lib/ with the methods that the loaded library has:
  # native ones, which YARD cannot see, need an `@!method` in the Ruby file.
  class DocCoverage
    def run
      $LOAD_PATH.unshift(File.join(Build::ROOT, "lib"))
      require "candle"
      load_integrations
      load_registry
      problems = undocumented + nonexistent
      problems.each { |problem| warn problem }
      count = "#{public_methods_of_library.size} public methods"
      abort "#{count}, #{problems.size} problems in their documentation" if problems.any?
      puts "#{count}, all documented"
    end

    private

    # They stand on other gems, whose published interfaces do where the gems are not installed.
    def load_integrations
      $LOAD_PATH.push(File.join(Build::ROOT, "spec/fixtures/interfaces"))
      optional = File.join(Build::ROOT, "lib/candle/{integrations/*,runtime/log_subscriber}.rb")
      Dir[optional].sort.each { |path| require path }
    end

    def load_registry
      YARD::Logger.instance.level = ::Logger::ERROR
      # The generators are Rails', which is not loaded here.
      YARD.parse(Dir[File.join(Build::ROOT, "lib/**/*.rb")].grep_v(%r{/generators/}).sort)
    end

    def undocumented
      public_methods_of_library.filter_map do |path|
        object = YARD::Registry.at(path) || YARD::Registry.at(path.tr("#", "."))
        if object.nil?
          "#{path} has no documentation (a native method needs @!method)"
        elsif object.docstring.blank?(false) && !documented_alias?(object)
          "#{path} has no documentation (#{object.file}:#{object.line})"
        end
      end
    end

    def documented_alias?(object)
      original = object.is_alias? && object.namespace.child(name: object.namespace.aliases[object], scope: object.scope)
      original && !original.docstring.blank?(false)
    end

    def nonexistent
      YARD::Registry.all(:method).filter_map do |object|
        next if object.visibility != :public || !object.path.start_with?("Candle")
        next if exists?(object)

        "#{object.path} is documented but does not exist (#{object.file}:#{object.line})"
      end
    end

    def exists?(object)
      owner = Object.const_get(object.namespace.path)
      return owner.respond_to?(object.name) || owner.private_method_defined?(object.name) if object.scope == :class

      owner.method_defined?(object.name) || owner.private_method_defined?(object.name)
    end

    def public_methods_of_library
      @public_methods_of_library ||= modules(::Candle).uniq.flat_map { |owner| methods_of(owner) }.sort
    end

    def modules(owner)
      nested = owner.constants(false).map { |name| owner.const_get(name) }
                    .grep(Module).select { |inner| inner.name.to_s.start_with?("Candle::") }
      [owner, *nested.flat_map { |inner| modules(inner) }]
    end

    def methods_of(owner)
      instance = owner.public_instance_methods(false).map { |name| "#{owner.name}##{name}" }
      # A Struct brings class methods of its own.
      singleton = owner < Struct ? [] : owner.singleton_class.public_instance_methods(false)
      singleton = singleton.map { |name| "#{owner.name}.#{name}" }
      (instance + singleton).reject { |path| path.match?(/[#.]_/) || path.match?(/\.(allocate|new)\z/) }
    end
  end
end
